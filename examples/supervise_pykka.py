"""Plain Pykka actors under a supervisor: what crashes is started again, and its name goes on working. No Redis, no rooms."""

from __future__ import annotations

import logging
import sys
import threading

import pykka

from greenroom import ChildSpec, NamedRef, Strategy, Supervisor, watch


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # in one piece: two threads' prints may end up on one line


class Database(pykka.ThreadingActor):
    """Keeps a connection, and crashes when it is lost."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.dsn = dsn

    def on_start(self) -> None:
        say(f"database: connected to {self.dsn}")

    def on_stop(self) -> None:
        say("database: closed")

    def query(self, sql: str) -> str:
        return f"rows of {sql!r}"

    def lose_connection(self) -> None:
        raise ConnectionError("connection lost")


class Reports(pykka.ThreadingActor):
    """Uses the database by its name, so it needs no news of a restart."""

    def __init__(self, database: NamedRef, ready: threading.Semaphore) -> None:
        super().__init__()
        self._database = database
        self._ready = ready

    def on_start(self) -> None:
        say("reports: ready")
        self._ready.release()

    def on_stop(self) -> None:
        say("reports: closed")

    def today(self) -> str:
        return f"today: {self._database.proxy().query('SELECT 1').get(timeout=5)}"


def main() -> None:
    logging.getLogger("pykka").setLevel(logging.CRITICAL)  # it prints each crash; this one is on purpose
    ready = threading.Semaphore(0)
    specs = [ChildSpec("database", lambda: Database("db://local"))]
    ref = Supervisor.start(specs, strategy=Strategy.REST_FOR_ONE)  # who uses the database is started again with it
    try:  # the reports need the supervisor: they are added when there is one
        ref.proxy().add(ChildSpec("reports", lambda: Reports(NamedRef(ref, "database"), ready))).get(timeout=5)
        use(ref, ready)
    finally:
        ref.stop()  # reports first, then the database


def use(ref: pykka.ActorRef[Supervisor], ready: threading.Semaphore) -> None:
    database, reports = NamedRef(ref, "database"), NamedRef(ref, "reports")
    ready.acquire(timeout=5)
    say(reports.proxy().today().get(timeout=5))

    actor = database.whereis()
    assert actor is not None
    watch(actor, lambda failure: say(f"database: ended by {failure!r}"))
    database.proxy().lose_connection.defer()
    ready.acquire(timeout=5)  # both are up again
    say(reports.proxy().today().get(timeout=5))

    for child in ref.proxy().children().get(timeout=5):
        say(f"{child.name}: running={child.running} restarts={child.restarts} last_failure={child.last_failure!r}")


if __name__ == "__main__":
    main()
