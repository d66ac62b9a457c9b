"""What workers, and misfortune, may do next: each action picks among what is possible, with the random numbers of its seed."""

from __future__ import annotations

from collections.abc import Callable

from .checks import PASSED
from .clients import MODES, discard, enqueue, requeue, signal, signal_again, signal_live, signal_play, write_raw
from .model import Room
from .relays import relay_end, relay_forget, relay_join, relay_late, relay_work
from .world import LONG_MS, WORKERS, Ghost, Hold, Request, Worker, World

STATES = (b"=", b"-", b"+s")


def _held(world: World) -> list[tuple[Worker, str, Hold]]:
    return [(worker, room, hold) for worker in world.workers.values() for room, hold in worker.holds.items()]


def _working(world: World) -> tuple[Worker, str, Hold] | None:
    """A cycle whose worker waits for no reply."""
    found = [row for row in _held(world) if row[2].ticket and row[2].lost is None]
    return world.rng.choice(found) if found else None


def _worker(world: World) -> Worker | None:
    return world.rng.choice(list(world.workers.values())) if world.workers else None


def _victim(world: World) -> Worker | None:
    """A worker that may be struck by misfortune: rather one with an aborted cycle that it has not settled."""
    live = {room.name: room.live for room in world.account.rooms.values() if room.live}
    aborted = [worker for worker, room, _ in _held(world) if room in live and (live[room].abort or live[room].deferred)]
    return world.rng.choice(aborted) if aborted and world.rng.random() < 0.6 else _worker(world)


def _state(world: World) -> bytes:
    state = world.rng.choice(STATES)
    return state + b"%d" % world.number() if state == b"+s" else state


# Workers. -----------------------------------------------------------------------------------------------


def join(world: World) -> None:
    """A new worker, or a restart under the same name: it finds its rooms pending."""
    victim = _victim(world) if world.rng.random() < 0.5 else None
    name = victim.name if victim else world.rng.choice(WORKERS)
    world.join(name)
    if world.rng.random() < 0.8:
        world.read(world.workers[name], "0", 100)


def beat(world: World) -> None:
    """Renew a lease. A worker that finds it lapsed may go on, or forget all and claim its rooms anew."""
    worker = _worker(world)
    if worker is None:
        return
    expected = world.account.beat(worker.name, worker.incarnation)
    world.call(expected, "heartbeat", worker.name, worker.incarnation, LONG_MS, "instance", second="ok")
    if expected[0] == "superseded" or (expected[0] == "lapsed" and world.rng.random() < 0.5):
        world.bury(worker)
    if expected[0] == "superseded":
        del world.workers[worker.name]
    elif expected[0] == "lapsed":
        world.read(worker, "0", 100)


def read(world: World) -> None:
    worker = _worker(world)
    if worker is not None:
        world.read(worker, ">" if world.rng.random() < 0.9 else "0", world.rng.choice((1, 2, 10)))


def claim(world: World) -> None:
    found = [row for row in _held(world) if not row[2].ticket and row[2].lost is None]
    if found:
        worker, room, hold = world.rng.choice(found)
        send_claim(world, worker, room, hold)


def send_claim(world: World, worker: Worker, room: str, hold: Hold) -> None:
    args = {"worker": worker.name, "incarnation": worker.incarnation, "ready": hold.ready, "request": f"q{world.number()}"}
    world.ask(worker, hold, Request("claim", room, args))


def send_again(world: World) -> None:
    """A worker whose reply was lost sends the same request again."""
    found = [(worker, hold, hold.lost) for worker, _, hold in _held(world) if hold.lost is not None]
    if found:
        worker, hold, request = world.rng.choice(found)
        world.ask(worker, hold, request)


def late(world: World) -> None:
    """A request that was answered long ago arrives once more: nobody reads its answer."""
    if world.late:
        request = world.late.pop(world.rng.randrange(len(world.late)))
        world.note("late:")
        answer = world.request(request)
        if answer[0] == "grant":
            _haunt(world, request, answer)


def _haunt(world: World, request: Request, answer: tuple[object, ...]) -> None:
    """Nobody works on this grant, unless it repeats one that a live worker has."""
    ticket = answer[2]
    assert isinstance(ticket, int)
    if all(hold.ticket != ticket for _, _, hold in _held(world)):
        worker, incarnation = str(request.args.get("worker", "w0")), int(request.args.get("incarnation", 0))
        world.ghosts.append(Ghost(worker, incarnation, request.room, ticket, str(request.args.get("ready", "1-1"))))


def work(world: World) -> None:
    """Emit chunks or run a step; what is refused tells the worker of the abort."""
    found = _working(world)
    if found is None:
        return
    worker, room, hold = found
    if world.rng.random() < 0.6:
        bodies = [b"o%d" % world.number() for _ in range(world.rng.choice((1, 1, 2)))]
        request = Request("emit", room, {"ticket": hold.ticket, "first": hold.seq + 1, "bodies": bodies})
        answer = world.request(request)
        hold.seq += len(bodies)
    else:
        act = world.rng.choice(("begin", "begin", "again", "done", "failed"))
        answer = world.step(room, hold.ticket, world.rng.choice(("a", "b")), act, b"v%d" % world.number())
    _refused(world, worker, room, hold, answer)


def _refused(world: World, worker: Worker, room: str, hold: Hold, answer: tuple[object, ...]) -> None:
    if answer[0] in ("interrupt", "stop"):
        hold.aborted = str(answer[0])
    elif answer[0] == "fenced":
        world.drop(worker, room, hold)


def shield(world: World) -> None:
    found = _working(world)
    if found is not None:
        worker, room, hold = found
        live = world.account.rooms[room].live
        up = not (live and live.shield) if world.rng.random() < 0.8 else world.rng.random() < 0.5
        _refused(world, worker, room, hold, world.shield(room, hold.ticket, up=up))


def _commit(world: World, room: str, ticket: int) -> Request:
    take_next = world.rng.random() < 0.75
    args = {"ticket": ticket, "take_next": take_next, "state": _state(world), "reply": b"a%d" % world.number()}
    return Request("commit", room, args)


def commit(world: World) -> None:
    found = _working(world)
    if found is not None:
        worker, room, hold = found
        world.ask(worker, hold, _commit(world, room, hold.ticket))


def _settle(world: World, room: str, ticket: int, how: str) -> Request:
    rng = world.rng
    args = {
        "ticket": ticket,
        "how": how,
        "take_next": rng.random() < 0.7,
        "state": _state(world),
        "closing": rng.choice((b"", b"bye")),
        "error": f"e{world.number()}",
        "retry_ms": rng.choice((0, LONG_MS)),
    }
    return Request("settle", room, args)


def settle(world: World) -> None:
    """Fail, reject, give back or put off; one in ten asks to consume what nobody interrupted, which is refused."""
    found = _working(world)
    if found is not None:
        worker, room, hold = found
        how = world.rng.choices(("fail", "release", "too_new", "reject", "consume"), (6, 2, 1, 1, 1))[0]
        world.ask(worker, hold, _settle(world, room, hold.ticket, how))


def settle_aborted(world: World) -> None:
    """A worker that knows of an abort, by a refusal or the control stream, ends the cycle."""
    found = []
    for worker, room, hold in _held(world):
        live = world.account.rooms[room].live
        if hold.lost is None and hold.ticket and (hold.aborted or (live and live.ticket == hold.ticket and live.abort)):
            found.append((worker, room, hold, hold.aborted or (live.abort if live else "")))
    if found:
        worker, room, hold, aborted = world.rng.choice(found)
        how = "consume" if aborted == "interrupt" else "release"
        world.ask(worker, hold, _settle(world, room, hold.ticket, how if world.rng.random() < 0.9 else "fail"))


def release(world: World) -> None:
    """A draining worker gives back a room of which it runs no cycle."""
    found = [row for row in _held(world) if not row[2].ticket and row[2].lost is None]
    if found:
        worker, room, hold = world.rng.choice(found)
        _release(world, worker.name, room, hold.ready)
        world.drop(worker, room, hold)


def _release(world: World, worker: str, room: str, ready: str) -> None:
    mine = world.entitled(worker, ready) and not world.account.rooms[room].live
    world.call(("ok" if mine else "lost", ""), "release", room, worker, ready, second="lost")
    if mine:
        world.require_given_back(room)


def leave(world: World) -> None:
    """A worker ends its lease: what it still owns is found by others."""
    worker = _worker(world)
    if worker is not None:
        world.call(world.account.leave(worker.name, worker.incarnation), "leave", worker.name, worker.incarnation)
        world.bury(worker)
        del world.workers[worker.name]


def adopt(world: World) -> None:
    worker = _worker(world)
    if worker is not None:
        world.adopt(worker, world.rng.choice((1, 100)))


def read_raw(world: World) -> None:
    """A worker handles the next hand-written entries in their order; others have handled them, or will."""
    worker = _worker(world)
    if worker is None:
        return
    for entry_id, mode, room in world.raws[worker.raw_at : worker.raw_at + 2]:
        worker.raw_at += 1
        if mode in MODES:
            world.control(mode, (room,), entry_id, raw=entry_id)
        else:
            world.malformed(entry_id)


# Misfortunes. ---------------------------------------------------------------------------------------------


def kill(world: World) -> None:
    """A process ends; its lease runs out now, or later."""
    worker = _victim(world)
    if worker is not None:
        world.note(f"{worker.name} is killed")
        world.bury(worker)
        del world.workers[worker.name]
        if world.rng.random() < 0.6:
            world.expire(worker.name)


def lapse(world: World) -> None:
    """A lease runs out; if its process lives, it does not know yet."""
    if world.account.leases:
        world.expire(world.rng.choice(list(world.account.leases)))


def usurp(world: World) -> None:
    """A lease runs out in the middle of a cycle, and another worker adopts the room: the first one does not know."""
    found = _working(world)
    others = [worker for worker in world.workers.values() if found is not None and worker is not found[0]]
    if found is not None and others:
        world.expire(found[0].name)
        world.adopt(world.rng.choice(others), 100)


def haunt(world: World) -> None:
    """A zombie sends what it had in flight, or asks for more."""
    if world.ghosts:
        ghost = world.rng.choice(world.ghosts[-8:])
        world.note(f"zombie of {ghost.worker} {ghost.incarnation}:")
        world.rng.choice((_zombie_effect, _zombie_request, _zombie_lease))(world, ghost)


def _zombie_effect(world: World, ghost: Ghost) -> None:
    rng = world.rng
    act = rng.choice(("emit", "emit", "step", "shield"))
    if act == "emit":
        world.emit(ghost.room, ghost.ticket, rng.randint(1, 4), [b"z%d" % world.number()])
    elif act == "step":
        world.step(ghost.room, ghost.ticket, "a", rng.choice(("begin", "done")), b"z%d" % world.number())
    else:
        world.shield(ghost.room, ghost.ticket, up=rng.random() < 0.5)


def _zombie_request(world: World, ghost: Ghost) -> None:
    act = world.rng.choice(("claim", "commit", "settle"))
    if act == "claim":
        args = {"worker": ghost.worker, "incarnation": ghost.incarnation, "ready": ghost.ready, "request": f"q{world.number()}"}
        request = Request("claim", ghost.room, args)
    elif act == "commit":
        request = _commit(world, ghost.room, ghost.ticket)
    else:
        request = _settle(world, ghost.room, ghost.ticket, world.rng.choice(("fail", "release", "consume")))
    answer = world.request(request)
    if answer[0] == "grant" and isinstance(answer[2], int):
        world.ghosts.append(Ghost(ghost.worker, ghost.incarnation, ghost.room, answer[2], ghost.ready))


def _zombie_lease(world: World, ghost: Ghost) -> None:
    act = world.rng.choice(("beat", "leave", "release"))
    name, incarnation = ghost.worker, ghost.incarnation
    if act == "beat":
        world.call(world.account.beat(name, incarnation), "heartbeat", name, incarnation, LONG_MS, "instance", second="ok")
    elif act == "leave":
        world.call(world.account.leave(name, incarnation), "leave", name, incarnation)
    else:
        _release(world, name, ghost.room, ghost.ready)


def forget(world: World) -> None:
    """The minute passes for which a room's hash outlives its work: its requests are not known any more."""
    idle = [room for room in world.account.rooms.values() if room.settled and not room.queue and not room.mode]
    if idle:
        room = world.rng.choice(idle)
        room.settled, room.request, room.answer = 0, "", None
        world.send(("DEL", world.wire.keys.room(room.name)))
        world.note(f"{room.name} is forgotten")


def retry_passes(world: World) -> None:
    """The retry time of a room passes: its hash is rewritten, which costs no waiting."""
    waiting = [room for room in world.account.rooms.values() if room.retry]
    if waiting:
        pass_retry(world, world.rng.choice(waiting))


def pass_retry(world: World, room: Room) -> None:
    room.retry = False
    world.send(("HSET", world.wire.keys.room(room.name), "retry_at", PASSED))
    world.note(f"the retry time of {room.name} passes")


def sweep(world: World) -> None:
    """Rooms are forgotten as soon as nothing of them is under way: no work, no mode, no output for a relay."""
    account, wire = world.account, world.wire
    idle = [room for room in account.rooms.values() if room.state is not None and not room.queue and not room.mode]
    for room in idle:
        kept = [world.send(("HEXISTS", wire.keys.undelivered(name), room.name))[0] for name in account.relays]
        if not any(kept):
            room.state = None
    world.send(("HSET", wire.keys.root, "keep_idle_rooms_s", 0), wire.script("sweep", 0), wire.script("sweep", 0))
    world.send(("HDEL", wire.keys.root, "keep_idle_rooms_s"))
    world.note(f"sweep with {[room.name for room in idle]} idle")


def advance(world: World) -> None:
    """The first of these that is possible, so that runs are about cycles at work and not about waiting for one."""
    account = world.account
    before = world.sent
    if not world.workers:
        join(world)
    elif not any(room.queue for room in account.rooms.values()):
        enqueue(world)
    elif not any(account.may_run(room) for room in account.rooms.values() if room.queue) and world.rng.random() < 0.5:
        signal_play(world)
    likely = (send_again, claim, settle_aborted, retry_passes, work, commit, settle)
    for action in (*world.rng.sample(likely, 9, counts=(1, 1, 1, 1, 3, 1, 1)), read):
        if world.sent == before:
            action(world)


# Each with its weight, and whether a run may do without it.
ACTIONS: tuple[tuple[Callable[[World], None], float, bool], ...] = (
    (advance, 60, True),
    (enqueue, 14, False),
    (read, 8, False),
    (claim, 12, False),
    (work, 14, True),
    (commit, 12, False),
    (settle, 8, True),
    (settle_aborted, 6, True),
    (send_again, 6, False),
    (late, 5, True),
    (signal, 5, True),
    (signal_play, 5, False),
    (signal_live, 7, True),
    (signal_again, 3, True),
    (write_raw, 2, True),
    (read_raw, 3, True),
    (shield, 8, True),
    (discard, 2, True),
    (requeue, 1.5, True),
    (join, 2.5, False),
    (beat, 3, True),
    (release, 1, True),
    (leave, 0.7, True),
    (adopt, 3, True),
    (kill, 2, True),
    (lapse, 1.5, True),
    (usurp, 1.5, True),
    (haunt, 8, True),
    (forget, 1.5, True),
    (retry_passes, 4, False),
    (sweep, 0.7, True),
    (relay_join, 3, True),
    (relay_work, 12, True),
    (relay_late, 3, True),
    (relay_end, 2, True),
    (relay_forget, 0.7, True),
)
