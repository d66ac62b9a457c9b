"""``top`` on a real agent: what a look reads and costs, and the whole of it on a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis as redis_py

from greenroom import Backoff, Client, EventKind, Phase
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Store
from greenroom.protocol.watching import EVENTS, RATE_S, Watch
from integration.agents import WAIT_S, Director, eventually, run
from integration.command import Shell
from integration.conftest import Running

from helpers import lasting_server
from started import Started

HOUR = timedelta(hours=1)
A_THOUSAND_A_SECOND = """
local now = redis.call('TIME')[1] * 1000
for n = ARGV[1], 1, -1 do
  redis.call('XADD', KEYS[1], string.format('%.0f-0', now - n), 'event', 'cycle.committed', 'room', '1')
end
"""
SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")  # that moves or colours, and shows nothing


def watching(redis_url: str, agent: str, test: Callable[[Watch, Store], Coroutine[Any, Any, None]]) -> None:
    """Run the test with a watch of the agent."""

    async def main() -> None:
        redis = connect(redis_url)
        store = Store(redis, Keys(agent), patience_s=WAIT_S)
        try:
            await test(Watch(store), store)
        finally:
            await store.close()
            await redis.aclose()

    run(main)


# Looking. -------------------------------------------------------------------------------------------------


def test_a_look_finds_what_runs_fails_and_is_held_and_tells_how_much_happens(
    running: Running, director: Director, client: Client, redis_url: str, agent: str
) -> None:
    system = running(director.agent(retry=Backoff(first=HOUR, most=HOUR)))
    client.send("fails", "fail")
    eventually(lambda: client.status("fails").phase is Phase.BACKOFF, "it waits for its retry")
    client.send("runs", "wait")
    director.run("runs")
    client.stop("stopped", "stopped-idle", reason="why")
    client.send("stopped", "later")
    client.ask("done", "hello")

    async def test(watch: Watch, store: Store) -> None:
        look = await watch.look(20)
        found = {status.room: status.phase for status in look.rooms}
        phases = {"fails": Phase.BACKOFF, "runs": Phase.PROCESSING, "stopped": Phase.HELD, "stopped-idle": None}
        assert found == phases
        assert [(worker.name, worker.alive) for worker in look.workers] == [(system.name, True)]
        assert look.a_second[EventKind.CYCLE_COMMITTED] > 0
        assert look.a_second[EventKind.CYCLE_FAILED] > 0
        assert look.a_second[EventKind.CYCLE_INTERRUPTED] == 0
        assert [event.kind for event in look.lately] == [EventKind.WORKER_JOINED]
        assert {status.room for status in (await watch.look(20, also=["done"])).rooms} == {*phases, "done"}

    watching(redis_url, agent, test)


def test_rooms_that_are_queued_are_found_and_those_in_processing_are_not_taken_for_them(
    running: Running, director: Director, client: Client, redis_url: str, agent: str
) -> None:
    running(director.agent(), max_rooms=3)
    for number in range(3):
        client.send(f"runs-{number}", "wait")
        director.run(f"runs-{number}")
    for number in range(5):
        client.send(f"queued-{number}", "hello")

    async def test(watch: Watch, store: Store) -> None:
        look = await watch.look(2)
        assert sorted(status.room for status in look.rooms) == ["queued-0", "queued-1", "runs-0", "runs-1"]
        assert (look.agent.waiting, look.agent.processing) == (5, 3)

    watching(redis_url, agent, test)


def test_a_room_that_was_stopped_last_is_found_among_thousands_and_a_failed_one_until_it_is_played(
    client: Client, redis_url: str, agent: str, redis: redis_py.Redis, keys: Keys
) -> None:
    client.stop(*(f"room-{number}" for number in range(2000)))
    redis.xtrim(keys.control, 0)
    client.stop("last")

    async def test(watch: Watch, store: Store) -> None:
        assert "last" in {status.room for status in (await watch.look(10)).rooms}

    watching(redis_url, agent, test)


def test_a_look_costs_as_much_with_thousands_of_rooms_as_with_few(client: Client, redis_url: str, agent: str) -> None:
    sent: list[str] = []

    async def test(watch: Watch, store: Store) -> None:
        plain = store.pipeline.command

        def counted(*words: Any, **options: Any) -> Any:
            sent.append(words[0])
            return plain(*words, **options)

        store.pipeline.command = counted  # type: ignore[method-assign]  # it counts, and does what it did
        costs = []
        for number in (20, 3000):
            rooms = [f"room-{place}" for place in range(number)]
            await asyncio.to_thread(client.stop, *rooms, cid=f"stop-{number}")
            for place in range(40):
                await asyncio.to_thread(client.send, f"room-{place % 20}", "later")
            await watch.look(10)
            sent.clear()
            look = await watch.look(10)
            costs.append(len(sent))
            assert len(look.rooms) <= 40
        assert costs[1] <= costs[0] + 20

    watching(redis_url, agent, test)


def test_names_are_searched_for_bit_by_bit_and_the_room_of_just_that_name_is_found_at_once(
    client: Client, redis_url: str, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.stop(*(f"room-{number}" for number in range(2000)), "a*b", "axb")
    monkeypatch.setattr("greenroom.protocol.watching.SCAN", 100)
    monkeypatch.setattr("greenroom.protocol.watching.SCANS", 2)

    async def test(watch: Watch, store: Store) -> None:
        names = {status.room for status in (await watch.look(50, search="room-17")).rooms}
        assert "room-17" in names
        looks = 1
        while len(names) < 50:
            names = {status.room for status in (await watch.look(50, search="room-17")).rooms}
            looks += 1
            assert looks < 200
        assert all("room-17" in name for name in names)
        found = set[str]()
        for _ in range(20):
            found |= {status.room for status in (await watch.look(50, search="a*b")).rooms}
        assert found == {"a*b"}
        assert not [status for status in (await watch.look(50, search="nobody")).rooms if status.room == "nobody"]

    watching(redis_url, agent, test)


def test_more_events_than_one_look_reads_are_told_as_a_rate_of_those_that_it_reads(
    redis_url: str, agent: str, redis: redis_py.Redis, keys: Keys
) -> None:
    async def test(watch: Watch, store: Store) -> None:
        await watch.look(1)
        redis.eval(A_THOUSAND_A_SECOND, 1, keys.events, 3 * EVENTS)
        rate = (await watch.look(1)).a_second[EventKind.CYCLE_COMMITTED]
        assert 200 < rate <= EVENTS + 1  # less than a thousand where the look came late

    watching(redis_url, agent, test)


def test_each_event_is_told_once_and_rates_are_of_the_last_seconds(
    redis: redis_py.Redis, redis_url: str, keys: Keys, agent: str
) -> None:
    seconds: Any = redis.time()
    for number in range(50):
        redis.xadd(keys.events, {"event": "cycle.committed", "room": "42"}, id=f"{(seconds[0] - 60) * 1000}-{number + 1}")
    for _ in range(10):
        redis.xadd(keys.events, {"event": "cycle.committed", "room": "42"})
    redis.xadd(keys.events, {"event": "cycle.failed", "room": "recovered"})
    redis.xadd(keys.events, {"event": "message.dead", "room": "42"})

    async def test(watch: Watch, store: Store) -> None:
        looks = [await watch.look(10) for _ in range(3)]
        for look in looks:
            assert [event.kind for event in look.lately] == [EventKind.MESSAGE_DEAD]
            assert look.a_second[EventKind.CYCLE_COMMITTED] <= 10 / RATE_S
        assert [[status.room for status in look.rooms] for look in looks] == [["recovered"], [], []]

    watching(redis_url, agent, test)


def test_a_room_whose_hash_nobody_can_read_hides_no_other(
    client: Client, redis_url: str, agent: str, redis: redis_py.Redis, keys: Keys
) -> None:
    client.stop("good", "broken")
    redis.hset(keys.room("broken"), "phase", "garbage")

    async def test(watch: Watch, store: Store) -> None:
        broken, good = sorted((await watch.look(10)).rooms, key=lambda status: status.room)
        assert broken.last_error is not None
        assert "did not write" in broken.last_error
        assert good.hold is not None

    watching(redis_url, agent, test)


def test_without_a_terminal_it_is_shown_once_as_plain_text(shell: Shell, client: Client) -> None:
    client.stop("42", reason="wrong answers", by="ann")
    out, err = shell("top")
    assert err == ""
    assert "\x1b" not in out
    assert out.startswith(f"{client.agent} plays")
    assert out.splitlines()[-1].split() == ["42", "held", "0s", "-", "0", "-", "stop", "by", "ann:", "wrong", "answers"]
    assert "has anything to do" in shell("top", "--agent", f"{client.agent}-2")[0]
    shell.refused("top", "--interval", "0", code=2)


# On a terminal. -------------------------------------------------------------------------------------------


def take_terminal() -> None:
    """Make stdin the terminal that this process is controlled from, so that Ctrl-C there is SIGINT."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """``greenroom top`` on a terminal of its own, as a person has it."""

    def __init__(self, agent: str, redis_url: str, *options: str, rows: int = 24, columns: int = 100) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        command = [sys.executable, "-m", "greenroom", "top", "--agent", agent, "--redis", redis_url, *options]
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process: subprocess.Popen[bytes] = Started(
            command,
            env=environment,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        self.said = ""
        self._seen = 0

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    def _more(self, timeout_s: float) -> bool:
        """Read on, if there is something to read."""
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return False
        self.said += os.read(self._ours, 65536).decode(errors="replace")
        return True

    def wait(self, *words: str) -> None:
        """Wait until the screen has shown these, in any order, since the last call."""
        begin, deadline = self._seen, time.monotonic() + WAIT_S
        while not all(word in SEQUENCE.sub("", self.said[begin:]) for word in words):
            assert time.monotonic() < deadline, f"not shown: {words}: {self.said[begin:][-3000:]!r}"
            self._more(0.1)
        self._seen = len(self.said)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def exit_code(self) -> int:
        """Its exit code, once it has ended; the terminal must be as it was."""
        deadline = time.monotonic() + WAIT_S
        while self._more(0.1) or self.process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended: {self.said[-2000:]!r}"
        assert termios.tcgetattr(self._theirs) == self.before
        for off, on in (("\x1b[?1049l", "\x1b[?1049h"), ("\x1b[?25h", "\x1b[?25l")):  # the other screen, the hidden cursor
            assert self.said.rindex(off) > self.said.rindex(on)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)


class Opening(Protocol):
    def __call__(self, *options: str) -> Terminal: ...


@pytest.fixture
def opening(agent: str, redis_url: str) -> Iterator[Opening]:
    terminals: list[Terminal] = []

    def start(*options: str) -> Terminal:
        terminals.append(Terminal(agent, redis_url, *options))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_a_person_sees_the_rooms_live_and_stops_one_with_a_reason_plays_it_and_interrupts_it(
    opening: Opening, client: Client, running: Running, director: Director
) -> None:
    running(director.agent())
    client.send("42", "wait")
    first = director.run("42")
    terminal = opening("--interval", "0.2")
    terminal.wait("1 running", "42", "processing", "q quit")
    terminal.type("\x1b[B")
    terminal.wait("> 42")
    terminal.type("s")
    terminal.wait("stop 42, because:")
    terminal.type("wrong answers\r")
    terminal.wait("stop 42: applied", "1 held", "wrong answers")
    first.wait_cancelled()
    hold = client.status("42").hold
    assert hold is not None
    assert hold.reason == "wrong answers"
    terminal.type("p")
    terminal.wait("play 42: applied", "1 running")
    second = director.run("42")
    terminal.type("i")
    terminal.wait("interrupt 42: applied")
    second.wait_cancelled()
    eventually(lambda: client.status("42").waiting == 0, "the message is consumed")
    terminal.wait("idle")
    client.stop("43")
    terminal.resize(20, 70)
    terminal.wait("43")
    terminal.type("sbye\rq")
    assert terminal.exit_code() == 0
    hold = client.status("42").hold
    assert hold is not None
    assert hold.reason == "bye", "what was asked for before the end was sent"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda terminal: terminal.type("\x03"), 130),
        (lambda terminal: terminal.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda terminal: terminal.process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["ctrl-c", "SIGTERM", "SIGHUP"],
)
def test_however_it_ends_the_terminal_is_as_it_was(opening: Opening, end: Callable[[Terminal], object], code: int) -> None:
    terminal = opening()
    terminal.wait("no room has anything to do")
    end(terminal)
    assert terminal.exit_code() == code


def test_a_bug_does_not_leave_the_terminal_behind_either(
    opening: Opening, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import greenroom.top.view as view\n"
        "take = view.View.take\n"
        "def broken(self, look):\n"
        "    take(self, look)\n"
        "    if look.rooms:\n"
        "        raise ZeroDivisionError('a bug')\n"
        "view.View.take = broken\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    terminal = opening("--interval", "0.2")
    terminal.wait("no room has anything to do")
    client.stop("42")
    assert terminal.exit_code() == 1
    assert "ZeroDivisionError: a bug" in SEQUENCE.sub("", terminal.said)


def test_a_suspended_one_gives_the_terminal_back_and_goes_on_when_it_is_continued(opening: Opening, client: Client) -> None:
    terminal = opening("--interval", "0.2")
    terminal.wait("no room has anything to do")
    terminal.process.send_signal(signal.SIGTSTP)
    os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
    assert terminal.attributes() == terminal.before
    client.stop("42")
    terminal.process.send_signal(signal.SIGCONT)
    terminal.wait("42", "held")
    terminal.type("q")
    assert terminal.exit_code() == 0


def test_a_redis_that_is_away_is_told_and_it_goes_on_when_it_is_back(redis_dir: Path, agent: str) -> None:
    with lasting_server(redis_dir) as server:
        terminal = Terminal(agent, server.url, "--interval", "0.2")
        try:
            terminal.wait("no room has anything to do")
            server.kill()
            terminal.wait("This is as it was at")
            server.start()
            with Client(agent, redis=server.url) as client:
                client.stop("42")
            terminal.wait("42", "held")
            terminal.type("q")
            assert terminal.exit_code() == 0
        finally:
            terminal.close()
