"""Metrics for Prometheus: a collector for a registry of yours, and a server for a process that has none.

It needs the ``metrics`` extra; nothing else in greenroom imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

from .actors.counts import Histogram
from .protocol.errors import InvalidRequest
from .protocol.log import log
from .protocol.store import Backlog
from .supervisors.measures import Measures
from .supervisors.system import ActorSystem

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
except ImportError as error:
    raise ImportError("greenroom.metrics needs prometheus-client: pip install 'greenroom[metrics]'") from error

Value = float | Histogram
Samples = Mapping[tuple[str, ...], Value]

_WORKER = ("agent", "worker")
_AGENT = ("agent",)


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: what it is, its labels after those that say whose it is, and how it is read from a worker's numbers."""

    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Measures], Samples]
    of_agent: bool = False  # the same from all workers of the agent

    def empty(self) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
        whose = _AGENT if self.of_agent else _WORKER
        return self.kind(f"greenroom_{self.name}", self.help, labels=(*whose, *self.labels))

    def add_to(self, metric: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily, measures: Measures) -> None:
        whose = (measures.agent,) if self.of_agent else (measures.agent, measures.worker)
        for values, value in self.read(measures).items():
            if isinstance(metric, HistogramMetricFamily):
                assert isinstance(value, Histogram)
                metric.add_metric((*whose, *values), _buckets(value), value.total)
            else:
                assert not isinstance(value, Histogram)
                metric.add_metric((*whose, *values), value)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(list(histogram.counts))), strict=True))


def _one(value: Value) -> Samples:
    return {(): value}


def _by(values: Mapping[str, int]) -> Samples:
    return {(name,): value for name, value in values.items()}


def _backlog(read: Callable[[Backlog], Samples]) -> Callable[[Measures], Samples]:
    return lambda measures: read(measures.backlog) if measures.backlog is not None else {}


def _of_rooms(values: tuple[float, float]) -> Samples:
    """By whether the rooms are held."""
    return {("false",): values[0], ("true",): values[1]}


_FAMILIES = (
    _Family(
        CounterMetricFamily,
        "messages",
        "How cycles ended here (committed, interrupted, stopped, released, failed, crashed), and messages that died (dead).",
        ("outcome",),
        lambda m: _by(m.counts.ended),
    ),
    _Family(
        GaugeMetricFamily,
        "cycles_in_flight",
        "Cycles whose code runs, and is waited for.",
        (),
        lambda m: _one(m.counts.in_flight),
    ),
    _Family(
        HistogramMetricFamily,
        "cycle_seconds",
        "How long the code of each cycle ran, until it ended or was left behind.",
        (),
        lambda m: _one(m.counts.cycle_s),
    ),
    _Family(
        CounterMetricFamily,
        "cycles_detached",
        "Cycles whose code did not end when it was told to, and was left behind, still running.",
        (),
        lambda m: _one(m.detached),
    ),
    _Family(
        CounterMetricFamily,
        "signals_heard",
        "Signals accepted while this worker was there, one for each room that they were for. All workers hear all: no sum.",
        ("mode", "outcome"),
        lambda m: {(mode, outcome): count for (mode, outcome), count in m.counts.signals.items()},
    ),
    _Family(
        HistogramMetricFamily,
        "signal_delay_seconds",
        "From when Redis accepted a signal to when this worker had read it, by Redis' clock.",
        (),
        lambda m: _one(m.counts.signal_s),
    ),
    _Family(
        CounterMetricFamily,
        "restarts",
        "Rooms started again after a failure on record (failed), a crash (crashed), a refusal of Redis (redis); parts of the "
        "worker (part).",
        ("reason",),
        lambda m: _by({**m.counts.restarts, "part": m.restarts}),
    ),
    _Family(
        CounterMetricFamily,
        "leases_lost",
        "Renewals of the lease that came after it had run out.",
        (),
        lambda m: _one(m.counts.leases_lost),
    ),
    _Family(
        CounterMetricFamily,
        "fenced_effects",
        "Sends, steps, commits and settlements that Redis refused because the cycle was not the live one any more.",
        (),
        lambda m: _one(m.counts.fenced),
    ),
    _Family(
        CounterMetricFamily,
        "reconnects",
        "Connections to Redis opened again, by what goes over them: scripts, control (signals) or ready (new work).",
        ("connection",),
        lambda m: _by(m.reconnects),
    ),
    _Family(
        GaugeMetricFamily,
        "ready",
        "1 when the worker is connected to Redis and its lease is held.",
        (),
        lambda m: _one(m.ready),
    ),
    _Family(
        GaugeMetricFamily,
        "user_loop_lag_seconds",
        "How long the agent's event loop took to answer: the longest of the last minute, one that it still owes included.",
        (),
        lambda m: _one(m.counts.lag.most_s()),
    ),
    _Family(
        GaugeMetricFamily,
        "rooms",
        "Rooms of the agent by phase; idle: with state or a mode, and no work.",
        ("phase",),
        _backlog(lambda b: _by(b.phases)),
        of_agent=True,
    ),
    _Family(
        GaugeMetricFamily,
        "agent_held",
        "1 when the whole agent is stopped, or paused.",
        ("mode",),
        _backlog(lambda b: {(mode,): float(b.mode == mode) for mode in ("stop", "pause")}),
        of_agent=True,
    ),
    _Family(
        GaugeMetricFamily,
        "waiting_messages",
        "Messages on which no cycle works, in rooms that may run or are held; an estimate where there are many rooms.",
        ("held",),
        _backlog(lambda b: _of_rooms(b.waiting)),
        of_agent=True,
    ),
    _Family(
        GaugeMetricFamily,
        "oldest_waiting_seconds",
        "Age of the oldest of these; where there are many rooms, of those looked at.",
        ("held",),
        _backlog(lambda b: _of_rooms(b.oldest_s)),
        of_agent=True,
    ),
    _Family(
        GaugeMetricFamily, "dead_letters", "Dead letters of the agent.", (), _backlog(lambda b: _one(b.dead)), of_agent=True
    ),
)


class Collector:
    """The metrics of systems in this process, for ``registry.register``. What each is: ``docs/operations.md``.

    A scrape counts nothing anew: it reads what the systems have counted, and asks Redis once for each of them. When Redis does
    not answer within a second, or refuses, what is read from it is absent, and the rest is there.
    """

    def __init__(self, *systems: ActorSystem) -> None:
        self._systems = systems
        self._told: set[str] = set()

    def describe(self) -> Iterable[Metric]:
        """All families, without values: a registry asks for their names."""
        return [family.empty() for family in _FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """All families with their values; from any thread but the loops of the systems."""
        workers = [system.measures() for system in self._systems]
        agents = {measures.agent: measures for measures in workers if measures.backlog is not None}
        for measures in workers:
            self._tell(measures)
        for family in _FAMILIES:
            metric = family.empty()
            for measures in agents.values() if family.of_agent else workers:
                family.add_to(metric, measures)
            yield metric

    def _tell(self, measures: Measures) -> None:
        """Once: somebody may wonder where they are."""
        if measures.refused and measures.worker not in self._told:
            self._told.add(measures.worker)
            log.warning("metrics.refused", agent=measures.agent, worker=measures.worker, error=measures.refused)


@contextmanager
def serve_metrics(system: ActorSystem, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the metrics of a system, and of this process, over HTTP within this block, by default for this host alone; answers
    the port, for 0 a free one.

    Only those: metrics of the agent's own are for a registry and a server of its own, so that they cannot hold these up.

    Raises:
        InvalidRequest: it cannot listen there.
    """
    registry = CollectorRegistry()
    registry.register(Collector(system))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"metrics: cannot listen on {host} port {port}: {why}") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
