"""What a system has to say of itself in numbers, for whoever exports them. It answers whatever hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from ..actors.counts import Counts
from ..actors.loop import LoopThread
from ..protocol.errors import RedisRefused
from ..protocol.store import Backlog, Store
from .child import ChildInfo

ROOMS = 100  # of each kind of room with work that are looked at
PATIENCE_S = 1.0  # for Redis


@dataclass(frozen=True, slots=True)
class Measures:
    """One worker's numbers.

    ``backlog`` is the whole agent's. It is None when Redis has not answered within a second, as in an outage, and when it
    ``refused``: then that says why. ``restarts`` are of the worker's parts other than rooms; ``reconnects`` are by what goes
    over the connection.
    """

    agent: str
    worker: str
    ready: bool
    counts: Counts
    detached: int
    reconnects: dict[str, int]
    restarts: int
    backlog: Backlog | None
    refused: str


def measure(
    agent: str,
    worker: str,
    counts: Counts,
    *,
    ready: bool,
    detached: int,
    parts: Iterable[ChildInfo],
    control: LoopThread,
    store: Store | None,
) -> Measures:
    """The measures of a worker, from any thread but its loops; ``store`` is None before its start."""
    again = {name: max(0, opened - 1) for name, opened in counts.connected.items()}
    backlog = _backlog(control, store) if store is not None and store.pipeline.connected else None
    return Measures(
        agent=agent,
        worker=worker,
        ready=ready,
        counts=counts,
        detached=detached,
        reconnects={"scripts": store.pipeline.reconnects if store is not None else 0, **again},
        restarts=sum(part.restarts for part in parts),
        backlog=backlog if isinstance(backlog, Backlog) else None,
        refused=backlog if isinstance(backlog, str) else "",
    )


def _backlog(control: LoopThread, store: Store) -> Backlog | str | None:
    answer: Future[Backlog] = Future()

    def ask() -> None:
        request = store.backlog(ROOMS)
        request.add_done_callback(lambda reply: _pass_on(reply, answer))
        answer.add_done_callback(lambda _: control.post(request.cancel))  # nobody waits for it: it is not to be repeated

    try:
        return answer.result(PATIENCE_S) if control.post(ask) else None
    except RedisRefused as error:
        return str(error)
    except Exception:  # it is away, or this worker is
        return None
    finally:
        answer.cancel()


def _pass_on(reply: asyncio.Future[Backlog], answer: Future[Backlog]) -> None:
    error = None if reply.cancelled() else reply.exception()
    if reply.cancelled() or not answer.set_running_or_notify_cancel():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(reply.result())
