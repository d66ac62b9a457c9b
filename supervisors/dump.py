"""What a running system is doing, as text for its operator. It is read from outside: whatever hangs can be seen."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pykka

from ..actors.loop import LoopThread
from ..protocol.log import frame_lines
from .rooms import RoomSupervisor

MOST = 200  # rooms, and tasks of one loop, that are shown
DEPTH = 40  # the innermost frames of a stack
PATIENCE_S = 2.0


def describe(
    name: str,
    control: LoopThread,
    user: LoopThread,
    rooms: pykka.ActorRef[RoomSupervisor] | None,
    agent: object,
    children: Sequence[str] = (),
) -> str:
    """The rooms at work with state, ticket and age, these lines about child processes, the tasks of both loops, and the stacks
    of all threads but this one.
    """
    return _dump(f"worker {name}", agent, [*_rooms(control, rooms), *children], control, user)


def describe_relay(name: str, control: LoopThread, user: LoopThread, agent: object) -> str:
    """The tasks of both loops, with one for each room at work, and the stacks of all threads but this one."""
    return _dump(f"relay {name}", agent, [], control, user)


def _dump(who: str, agent: object, rooms: list[str], *loops: LoopThread) -> str:
    lines = [f"dump of {who}, agent {agent}, pid {os.getpid()}", *rooms]
    for loop in loops:
        lines += _tasks(loop)
    lines += _threads()
    return "\n".join((*lines, f"end of the dump of {who}"))


def _more(shown: Sequence[object], count: int) -> list[str]:
    return [f"  and {count - len(shown)} more"] if count > len(shown) else []


# Rooms. ---------------------------------------------------------------------------------------------


def _rooms(control: LoopThread, ref: pykka.ActorRef[RoomSupervisor] | None) -> list[str]:
    supervisor = ref._actor_weakref() if ref is not None else None
    if supervisor is None:
        return ["no rooms: the worker is starting or has ended"]
    answer: Future[list[str]] = Future()

    def ask() -> None:
        answer.set_result(_list_rooms(supervisor))

    if control.post(ask):
        try:
            return answer.result(PATIENCE_S)
        except TimeoutError:
            return [f"no rooms: the control loop has not answered for {PATIENCE_S:.0f} s, see its stack"]
    return ["no rooms: the worker has ended"]


def _list_rooms(supervisor: RoomSupervisor) -> list[str]:
    """On the control loop, whose the rooms are."""
    now_s = supervisor.loop.loop.time()
    at_work = supervisor.at_work()
    shown = [f"  {room.room} {_state(room, now_s)}" for room in at_work[:MOST]]
    return [f"rooms at work: {len(at_work)}", *shown, *_more(shown, len(at_work))]


def _state(room: Any, now_s: float) -> str:
    grant = room.machine.grant
    ticket = f" ticket {grant.ticket} message {grant.message.id} attempt {grant.message.attempt}" if grant is not None else ""
    return f"{room.machine.state.value} for {now_s - room.since_s:.1f} s{ticket}"


# Tasks. ---------------------------------------------------------------------------------------------


def _tasks(thread: LoopThread) -> list[str]:
    loop = getattr(thread, "loop", None)  # from start on
    if loop is None:
        return [f"thread {thread.name} has not started"]
    tasks = sorted(_all_tasks(loop), key=lambda task: task.get_name())
    lines = [f"tasks of {thread.name}: {len(tasks)}"]
    for task in tasks[:MOST]:
        lines.append(f"  task {task.get_name()}")
        lines += _stack(list(_awaiting(task.get_coro())))
    return [*lines, *_more(tasks[:MOST], len(tasks))]


def _all_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    for _ in range(10):
        try:
            return asyncio.all_tasks(loop)
        except RuntimeError:  # tasks came and went while it looked
            continue
    return set()


def _awaiting(awaited: Any) -> Iterator[FrameType]:
    """The frames of a suspended task, the outermost first. A task's own stack has only that one."""
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None:
            # What ``async for`` waits for does not tell its generator, which is where the agent's code stands.
            awaited = next((item for item in gc.get_referents(awaited) if inspect.isasyncgen(item)), None)
            continue
        frame = getattr(awaited, f"{kind}_frame")
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


# Threads. -------------------------------------------------------------------------------------------


def _threads() -> list[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = [(ident, frame) for ident, frame in sys._current_frames().items() if ident != threading.get_ident()]
    lines = [f"threads: {len(frames)}"]
    for ident, frame in frames:
        lines.append(f"  thread {names.get(ident, 'of no name')} ({ident})")
        lines += _stack(_frames(frame))
    return lines


def stack_of(ident: int | None, depth: int = DEPTH) -> list[str]:
    """Where the thread with this id stands: lines of its ``depth`` innermost frames, the innermost last. Of one that runs an
    event loop, where the callback stands that the loop runs.
    """
    frame = sys._current_frames().get(ident or 0)
    if frame is None:
        return []
    frames = _frames(frame)
    callback = next((n for n, each in enumerate(frames, 1) if each.f_code is asyncio.Handle._run.__code__), 0)
    return _stack(frames[callback:], depth)


def _frames(innermost: FrameType) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_stack(innermost)][::-1]


def _stack(frames: list[FrameType], depth: int = DEPTH) -> list[str]:
    """Lines of the frames, the innermost last."""
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames[-depth:])
    return frame_lines(summary)
