"""The end of a run: everything plays, the dead are found out, and live workers do all the work there is."""

from __future__ import annotations

from .actions import pass_retry, send_claim
from .relays import drain_relays
from .world import LONG_MS, WORKERS, Hold, Request, Worker, World

ROUNDS = 200  # far more than there are messages and attempts


def drain(world: World) -> None:
    """Leave nothing to do and no state; what is stranded is still queued afterwards."""
    world.chaos = False
    _gather(world)
    world.control("play", tuple(world.account.rooms), f"c{world.number()}")
    world.control("play", (), f"c{world.number()}")
    for _ in range(ROUNDS):
        _write_to_delete(world)
        if not any(room.queue for room in world.account.rooms.values()):
            break
        for worker in world.workers.values():
            world.adopt(worker, 100)
            world.read(worker, ">", 10)
            for room, hold in list(worker.holds.items()):
                _finish(world, worker, room, hold)
    drain_relays(world)


def _write_to_delete(world: World) -> None:
    """A message to each idle room that has a state: its commit deletes it."""
    for room in world.account.rooms.values():
        if room.state is not None and not room.queue:
            key = f"k{world.number()}"
            world.call(world.account.enqueue(room, key, 1000, b"last"), "enqueue", room.name, key, 86_400, 1000, b"last")


def _gather(world: World) -> None:
    """Leases of the dead run out; those of live workers are renewed, and there is one."""
    for name in list(world.account.leases):
        if name not in world.workers:
            world.expire(name)
    for worker in list(world.workers.values()):
        expected = world.account.beat(worker.name, worker.incarnation)
        world.call(expected, "heartbeat", worker.name, worker.incarnation, LONG_MS, "instance")
    if not world.workers:
        world.join(WORKERS[0])


def _finish(world: World, worker: Worker, room: str, hold: Hold) -> None:
    """One request nearer to the end of this room's work."""
    if hold.lost is not None:
        world.ask(worker, hold, hold.lost)
    elif not hold.ticket:
        if world.account.rooms[room].retry:
            pass_retry(world, world.account.rooms[room])
        send_claim(world, worker, room, hold)
    elif hold.aborted:
        how = {"how": "consume" if hold.aborted == "interrupt" else "release", "closing": b"", "error": "", "retry_ms": 0}
        args = {"ticket": hold.ticket, "take_next": True, "state": b"-", **how}
        world.ask(worker, hold, Request("settle", room, args))
    else:
        args = {"ticket": hold.ticket, "take_next": True, "state": b"-", "reply": b""}
        world.ask(worker, hold, Request("commit", room, args))
