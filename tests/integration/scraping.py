"""What a scrape says, as numbers by name and labels."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from greenroom import ActorSystem
from greenroom.metrics import serve_metrics

LIMIT_S = 60.0  # a scrape that takes so long hangs


class Scraped:
    """The samples of one scrape.

    ``said("messages_total", outcome="dead")`` is the value of the only sample of that name that has these labels, or None.
    """

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

    def said(self, name: str, **labels: str) -> float | None:
        found = [value for each, own, value in self.samples if each == f"greenroom_{name}" and labels.items() <= own.items()]
        assert len(found) < 2, f"{name} {labels}: {found}"
        return found[0] if found else None

    def since_start(self) -> dict[str, float]:
        """As ``changed``, since the worker began to count."""
        return self.changed(Scraped(""))

    def changed(self, before: Scraped) -> dict[str, float]:
        """By how much each sample of greenroom's own counters and histograms has grown, of those that have."""
        was = {(name, *sorted(labels.items())): value for name, labels, value in before.samples}
        grown = {}
        for name, labels, value in self.samples:
            if name.startswith("greenroom_") and name.endswith(("_total", "_count")):
                by = value - was.get((name, *sorted(labels.items())), 0.0)
                if by:
                    own = [labels[label] for label in sorted(labels) if label not in ("agent", "worker")]
                    grown[" ".join((name.removeprefix("greenroom_"), *own))] = by
        return grown


class Page:
    """Where metrics are served."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.url = f"http://{host}:{port}/metrics"

    def text(self) -> str:
        with urllib.request.urlopen(self.url, timeout=LIMIT_S) as response:  # noqa: S310  # its own http URL
            body: bytes = response.read()
        return body.decode()

    def scrape(self) -> Scraped:
        return Scraped(self.text())


@contextmanager
def page_of(system: ActorSystem) -> Iterator[Page]:
    """The page of a system's metrics, while this lasts."""
    with serve_metrics(system, 0) as port:
        yield Page(port)
