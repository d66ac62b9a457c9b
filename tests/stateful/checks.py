"""Redis against the account: the structural invariants at any instant, and what must be left at the end of a run."""

from __future__ import annotations

import json
from typing import Any

from .model import Account, Room
from .wire import Dump, RoomDump, Wire, as_text

FORGET_S, DAY_S, WEEK_S = 60, 86_400, 604_800
PASSED = "2001-01-01T00:00:00.000Z"  # a retry time that the run has made pass


class Violation(AssertionError):
    """Redis did what the contract forbids."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def check_structure(account: Account, dump: Dump) -> None:
    """Invariants 5, 7, 9 and 10, and that nothing but the calls of this run has changed anything."""
    require(dump.mode == account.mode, f"the agent's mode is {dump.mode!r}, want {account.mode!r}")
    live = {room.name: room.live.ticket for room in account.rooms.values() if room.live is not None}
    require(dump.processing == live, f"processing is {dump.processing}, want {live}")
    held = {room.name for room in account.rooms.values() if room.queue and not room.live and not account.may_run(room)}
    require(dump.held == held, f"held is {sorted(dump.held)}, want {sorted(held)} (7)")
    listed = {room.name for room in account.rooms.values() if room.queue or room.mode or room.state is not None}
    require(dump.listed == listed, f"rooms is {sorted(dump.listed)}, want {sorted(listed)} (10)")
    ready = dict(dump.ready)
    require(set(dump.pending) <= set(ready), f"pending entries {sorted(set(dump.pending) - set(ready))} are not in ready")
    for name, room in account.rooms.items():
        entries = [entry_id for entry_id, of in dump.ready if of == name]
        _check_place(account, room, dump, entries)
        _check_content(room, dump.rooms[name])
        _check_life(room, dump.rooms[name])


def _check_place(account: Account, room: Room, dump: Dump, entries: list[str]) -> None:
    """Invariant 7: one ready entry when it may run (or runs), none otherwise; the hash says the same."""
    row = dump.rooms[room.name].hash
    runs = bool(room.live or (room.queue and account.may_run(room)))
    require(len(entries) == runs, f"{room.name} has the ready entries {entries}, want {int(runs)} (7)")
    require(row.get("ready") == (entries[0] if entries else None), f"{room.name}: its entry is {entries}, its hash {row} (7)")
    owner = dump.pending.get(entries[0]) if entries else None
    require(row.get("owner", owner) == owner, f"{room.name} is pending for {owner}, its hash says {row.get('owner')} (7)")
    if room.live is not None:
        require(("owner" in row) != room.live.adopted, f"{room.name} at work has the owner {row.get('owner')} (7)")
    phases: set[str | None]
    if not room.queue:
        phases = {None}
    elif room.live is not None:
        phases = {"processing"}
    elif not account.may_run(room):
        phases = {"held"}
    else:  # a worker that keeps a failed message at once due says backoff until it claims again
        phases = {"backoff"} if room.retry else {"queued", "backoff" if room.error else "queued"}
    require(row.get("phase") in phases, f"{room.name} has the phase {row.get('phase')}, want one of {phases} (7)")


def _check_content(room: Room, dump: RoomDump) -> None:
    row, cycle = dump.hash, room.live
    require(dump.messages == room.queue, f"{room.name} queues {dump.messages}, want {room.queue} (3, 4)")
    require(dump.state == room.state, f"{room.name} has the state {dump.state!r}, want {room.state!r} (9)")
    require(dump.steps == room.steps, f"{room.name} has the steps {dump.steps}, want {room.steps}")
    want = {
        "mode": room.mode,
        "cycle": str(cycle.ticket) if cycle else "",
        "shield": "1" if cycle and cycle.shield else "",
        "abort": cycle.abort if cycle else "",
        "deferred": cycle.deferred if cycle else "",
        "processing": room.queue[0] if room.begun else "",
        "attempt": str(room.charged + (cycle is not None)) if room.begun else "",
    }
    found = {name: row.get(name, "") for name in want}
    require(found == want, f"{room.name} is {found}, want {want}")
    waits = row.get("retry_at", PASSED) != PASSED
    require(waits == room.retry, f"{room.name} has retry_at {row.get('retry_at')}, want {room.retry}")
    mode_fields = {name for name in row if name.startswith("mode_")}
    require(len(mode_fields) == (4 if room.mode else 0), f"{room.name} with the mode {room.mode!r} has {mode_fields}")


def _check_life(room: Room, dump: RoomDump) -> None:
    """Invariant 10: a hash with nothing to say goes within a minute; one with work or a mode stays."""
    if room.queue or room.mode:
        require(dump.ttl_s == -1, f"{room.name} has work or a mode, and expires in {dump.ttl_s} s (10)")
    else:
        require(dump.ttl_s == -2 or 0 <= dump.ttl_s <= FORGET_S, f"{room.name} is idle, and has a life of {dump.ttl_s} s (10)")


def check_end(account: Account, wire: Wire) -> None:
    """When all is drained: invariants 1, 3, 8 and 10 by what was sent, what was recorded, and what is left."""
    for room in account.rooms.values():
        require(not room.queue, f"{room.name} still queues {room.queue} although everything plays: stranded (3, 7)")
        _check_outbox(room, wire)
    _check_ends(account)
    _check_dead(account, wire)
    _check_control(account, wire)
    _check_leftovers(account, wire)


def _check_outbox(room: Room, wire: Wire) -> None:
    found = [output_of(flat) for _, flat in wire.send(("XRANGE", wire.keys.outbox(room.name), "-", "+"))[0]]
    want = [(out.kind, out.message, out.ticket, out.seq, out.body, out.why) for out in room.outbox]
    if found != want:
        place = next((i for i, (a, b) in enumerate(zip(found, want, strict=False)) if a != b), min(len(found), len(want)))
        raise Violation(f"{room.name} sent {found[place : place + 2]} as output {place}, want {want[place : place + 2]} (1, 3)")


def _check_ends(account: Account) -> None:
    ends = [message for room in account.rooms.values() for message in room.ended]
    require(sorted(ends) == sorted(account.bodies), f"accepted {sorted(account.bodies)}, ended {sorted(ends)} (3)")


def _check_dead(account: Account, wire: Wire) -> None:
    found = {}
    for _, flat in wire.send(("XRANGE", wire.keys.dead, "-", "+"))[0]:
        row = dict(zip(flat[::2], flat[1::2], strict=True))
        found[as_text(row[b"message"])] = (as_text(row[b"room"]), int(row[b"attempts"]), as_text(row[b"error"]))
        require(row[b"body"] == account.bodies[as_text(row[b"message"])], f"the dead letter {row} has another body")
    require(found == account.dead, f"the dead letters are {found}, want {account.dead} (3)")


def _check_control(account: Account, wire: Wire) -> None:
    """One audit entry for each receipt of each signal, however often it was delivered."""
    found: dict[str, int] = {}
    for _, flat in wire.send(("XRANGE", wire.keys.control, "-", "+"))[0]:
        row: dict[bytes, Any] = dict(zip(flat[::2], flat[1::2], strict=True))
        if cid := as_text(row.get(b"cid", b"")):
            found[cid] = found.get(cid, 0) + 1
    want = {cid: len(receipts) for cid, (_, receipts) in account.signals.items()}
    require(found == want, f"audit entries by cid are {found}, want {want} (8)")


def _check_leftovers(account: Account, wire: Wire) -> None:
    root = wire.keys.root
    for key, ttl_s in wire.leftovers().items():
        name = key.removeprefix(root + ":")
        kind, _, rest = name.partition(":")
        if kind in ("seen", "signal"):
            limit = DAY_S
        elif kind == "room":
            limit = WEEK_S if rest.endswith(":outbox") else FORGET_S if ":" not in rest else -3
        else:
            kept = ("ready", "control", "events", "dead", "worker", "workers", "relay", "relays")
            require(kind in kept, f"{name} is left behind (10)")
            continue
        require(0 <= ttl_s <= limit, f"{name} is left behind with a life of {ttl_s} s (10)")


def receipts_of(data: bytes) -> tuple[tuple[str, str, str], ...]:
    rows = json.loads(data)["receipts"] or []
    return tuple(sorted((str(room), str(outcome), str(message)) for room, outcome, message in rows))


def output_of(flat: list[bytes]) -> tuple[str, str, int, int, bytes, str]:
    """An entry of an outbox: kind, message, ticket, seq, body, and how or why it ended."""
    row = dict(zip(flat[::2], flat[1::2], strict=True))
    why = as_text(row.get(b"mode", row.get(b"error", b"")))
    return as_text(row[b"kind"]), as_text(row[b"message"]), int(row[b"ticket"]), int(row[b"seq"]), row[b"body"], why
