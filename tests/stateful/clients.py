"""What clients and operators may do next: messages, dead letters and signals."""

from __future__ import annotations

from .model import Room
from .wire import as_text
from .world import ROOMS, World

MODES = ("interrupt", "stop", "pause", "play")


def any_room(world: World) -> Room:
    return world.account.rooms[world.rng.choice(ROOMS)]


def enqueue(world: World) -> None:
    room, rng = any_room(world), world.rng
    known = list(world.account.seen)
    key = rng.choice(known) if known and rng.random() < 0.2 else f"k{world.number()}"
    limit = rng.choice((1000, 1000, 1000, 3))
    body = b"b%d" % world.number()
    expected = world.account.enqueue(room, key, limit, body)
    world.call(expected, "enqueue", room.name, key, 86_400, limit, body)


def discard(world: World) -> None:
    room, rng = any_room(world), world.rng
    others = list(world.account.bodies) or ["1-0"]
    message = rng.choice(room.queue) if room.queue and rng.random() < 0.8 else rng.choice(others)
    requests = [key for key in world.account.requests if key.startswith("d")]
    request = rng.choice(requests) if requests and rng.random() < 0.1 else f"d{world.number()}"
    world.call(world.account.discard(room, message, request), "discard", room.name, message, request, 60)


def requeue(world: World) -> None:
    entry_id, message = _letter(world)
    request = f"q{world.number()}"
    world.call(world.account.requeue(message, request), "requeue", entry_id, request, 60)


def drop(world: World) -> None:
    entry_id, message = _letter(world)
    request = f"x{world.number()}"
    world.call(world.account.drop(message, request), "drop", entry_id, request, 60, "tester")


def _letter(world: World) -> tuple[str, str]:
    """A dead letter's entry and its message, or those of one that is not there."""
    rows = world.send(("XRANGE", world.wire.keys.dead, "-", "+"))[0]
    if not rows or world.rng.random() >= 0.9:
        return "1-1", ""
    chosen, flat = world.rng.choice(rows)
    return as_text(chosen), as_text(dict(zip(flat[::2], flat[1::2], strict=True))[b"message"])


# Signals. -----------------------------------------------------------------------------------------------


def signal(world: World) -> None:
    """To one room, to several, or everywhere; an interrupt perhaps to one message."""
    rng = world.rng
    mode = rng.choices(MODES, (4, 3, 2, 4))[0]
    names = tuple(rng.sample(ROOMS, rng.choice((0, 1, 1, 1, 1, 2, 3))))
    only = ""
    if mode == "interrupt" and rng.random() < 0.4:
        known = world.account.rooms[names[0]].queue if names and rng.random() < 0.8 else list(world.account.bodies)
        only = rng.choice(known) if known else ""
    world.control(mode, names, f"c{world.number()}", only)


def signal_play(world: World) -> None:
    names = (world.rng.choice(ROOMS),) if world.rng.random() < 0.5 else ()
    world.control("play", names, f"c{world.number()}")


def signal_live(world: World) -> None:
    """Interrupt or stop where a cycle is at work, and rather where one is shielded."""
    rooms = world.account.rooms.values()
    live = [room.name for room in rooms if room.live]
    live = [room.name for room in rooms if room.live and room.live.shield] or live
    if live:
        names = (world.rng.choice(live),) if world.rng.random() < 0.7 else ()
        world.control(world.rng.choice(("interrupt", "stop")), names, f"c{world.number()}")


def signal_again(world: World) -> None:
    """The id of a signal that was applied: delivered again, or used for another one."""
    if not world.account.signals:
        return
    cid, (target, _) = world.rng.choice(list(world.account.signals.items()))
    mode, only, *names = target.split(" ")
    if world.rng.random() < 0.3:
        mode = world.rng.choice(MODES)
    world.control(mode, tuple(name for name in names if name), cid, only)


def write_raw(world: World) -> None:
    """A hand-written entry; one in four is no signal."""
    mode = world.rng.choice((*MODES, "hurry"))
    room = world.rng.choice(ROOMS)
    entry_id = as_text(world.send(("XADD", world.wire.keys.control, "*", "mode", mode, "room", room))[0])
    world.raws.append((entry_id, mode, room))
    world.note(f"hand-written {mode} {room} -> {entry_id}")
