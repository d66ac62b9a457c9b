"""What processes of relays do, and what is due to them by the account of ``model``."""

from __future__ import annotations

from dataclasses import dataclass, field

from .checks import require
from .model import Account, Expected, Output, Relay, Room
from .wire import as_text
from .world import LONG_MS, ROOMS, World

RELAYS = ("p", "q")


@dataclass(slots=True)
class Process:
    """One process of a relay: ``given`` is what each room's function was given last, by its id and its place."""

    relay: str
    token: str
    given: dict[str, tuple[str, int]] = field(default_factory=dict)


# What must be answered. -----------------------------------------------------------------------------------


def take(account: Account, relay: str, token: str) -> Expected:
    """The first process gets the lease; any registers the relay, which is due all that is sent from then on."""
    if relay not in account.relays:
        account.relays[relay] = Relay({room.name: len(room.outbox) for room in account.rooms.values()})
    holder = account.relay_leases.setdefault(relay, token)
    return ("ok", "") if holder == token else ("taken", holder)


def is_withheld(room: Room, output: Output) -> bool:
    """Invariant 12: a chunk of a cycle that is aborted, or has ended so, but for its last word."""
    if output.kind != "chunk" or output.closing:
        return False
    if room.live is not None and room.live.ticket == output.ticket:
        return bool(room.live.abort)
    return any(other.kind == "aborted" and other.ticket == output.ticket for other in room.outbox)


def due(account: Account, process: Process, room: Room, done: int | None) -> Expected:
    """Invariant 12: the first output that the relay is not done with, and that is not withheld."""
    if account.relay_leases.get(process.relay) != process.token:
        return ("lost", "")
    relay = account.relays.get(process.relay)
    if relay is None:
        return ("empty", "")
    place = relay.places[room.name]
    place += done == place
    while place < len(room.outbox) and is_withheld(room, room.outbox[place]):
        place += 1
    relay.places[room.name] = place
    if place == len(room.outbox):
        return ("empty", "")
    relay.given.setdefault(room.name, []).append(place)
    out = room.outbox[place]
    return ("output", out.kind, out.message, out.ticket, out.seq, out.body, out.why)


# Actions. -------------------------------------------------------------------------------------------------


def _process(world: World) -> Process | None:
    """One of the last processes, and rather one that has its lease."""
    leases = world.account.relay_leases
    holders = [process for process in world.relays if leases.get(process.relay) == process.token]
    return world.rng.choice(holders if holders and world.rng.random() < 0.7 else world.relays[-4:] or [None])


def relay_join(world: World) -> None:
    """A process of a relay starts, or renews its lease; another may have it."""
    process = _process(world)
    if process is None or world.rng.random() < 0.5:
        process = Process(world.rng.choice(RELAYS), f"t{world.number()}")
        world.relays.append(process)
    expected = take(world.account, process.relay, process.token)
    world.call(expected, "relay", process.relay, process.token, LONG_MS)


def relay_work(world: World) -> None:
    """A process, perhaps one that has lost its lease, is done with what it was given, or tries that again."""
    for _ in range(world.rng.randint(1, 4)):
        process = _process(world)
        if process is not None:
            deliver(world, process, world.rng.choice(ROOMS), done=world.rng.random() < 0.8)


def relay_late(world: World) -> None:
    """A cycle is aborted while its chunks wait for a relay, which then asks for them."""
    process = _process(world)
    live = [room.name for room in world.account.rooms.values() if room.live is not None and room.live.seq]
    if process is not None and live:
        name = world.rng.choice(live)
        world.control(world.rng.choice(("interrupt", "stop")), (name,), f"c{world.number()}")
        deliver(world, process, name, done=world.rng.random() < 0.8)


def deliver(world: World, process: Process, name: str, *, done: bool) -> Expected:
    given_id, place = process.given.get(name, ("", -1)) if done else ("", -1)
    room = world.account.rooms[name]
    expected = due(world.account, process, room, place if given_id else None)
    why = "no" if world.rng.random() < 0.1 else ""
    answer = world.call(expected, "deliver", process.relay, process.token, name, given_id, why)
    if expected[0] == "output":
        process.given[name] = (as_text(answer[1]), world.account.relays[process.relay].places[name])
    return expected


def relay_end(world: World) -> None:
    """A process leaves, or its lease runs out; it may live on and not know."""
    process = _process(world)
    if process is None:
        return
    held = world.account.relay_leases.get(process.relay) == process.token
    if held:
        del world.account.relay_leases[process.relay]
    if world.rng.random() < 0.5:
        world.call(("ok", ""), "relay", process.relay, process.token, "")
    elif held:
        world.send(("DEL", world.wire.keys.relay(process.relay)))
        world.note(f"the lease of {process.token} runs out")


def relay_forget(world: World) -> None:
    account, name = world.account, world.rng.choice(RELAYS)
    expected: Expected = ("ok", "")
    if name in account.relay_leases:
        expected = ("runs", account.relay_leases[name])
    elif account.relays.pop(name, None) is None:
        expected = ("unknown", "")
    world.call(expected, "forget_relay", name, f"f{world.number()}", 60)


# The end. -------------------------------------------------------------------------------------------------


def drain_relays(world: World) -> None:
    """Each relay gets a process that hands over all that is due, and then has handed over all that it ever was."""
    account = world.account
    for name, relay in account.relays.items():
        account.relay_leases.pop(name, None)
        world.send(("DEL", world.wire.keys.relay(name)))
        process = Process(name, f"t{world.number()}")
        world.call(take(account, name, process.token), "relay", name, process.token, LONG_MS)
        for room in account.rooms.values():
            while deliver(world, process, room.name, done=True)[0] == "output":
                pass
            given = relay.given.get(room.name, [])
            require(given == sorted(given), f"{name} was given the outputs {given} of {room.name} (12)")
            want = {i for i in range(relay.since[room.name], len(room.outbox)) if not is_withheld(room, room.outbox[i])}
            require(want <= set(given), f"{name} was given {sorted(set(given))} of {room.name}, want {sorted(want)} (12)")
