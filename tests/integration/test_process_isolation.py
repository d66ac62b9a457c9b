"""``isolation = "process"``: an agent's code in child processes, which an abort ends."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import redis as redis_py

from greenroom import ActorSystem, Agent, Client, Kind, Mode, Outcome, Output, Superseded
from greenroom.actors.isolation import ChildPool
from greenroom.actors.room import Room
from integration import isolated_agents as agents
from integration.agents import eventually, wait_event, wait_output
from integration.conftest import Running
from integration.isolated_agents import lives, wait_begun, wait_gone

ABORTS = pytest.mark.parametrize("verb", [Mode.INTERRUPT, Mode.STOP])
ENDED = {Mode.INTERRUPT: "cycle.interrupted", Mode.STOP: "cycle.stopped"}
NOT_HANGING_S = 30.0  # generous: what is waited for here would go on for an hour


def pool_of(system: ActorSystem) -> ChildPool:
    assert system._pool is not None
    return system._pool


def room_of(system: ActorSystem, room: str) -> Room:
    rooms = system._worker.rooms
    supervisor = rooms._actor_weakref() if rooms is not None else None
    assert supervisor is not None
    [found] = [each for each in supervisor.at_work() if each.room == room]
    return found


def ready(system: ActorSystem) -> set[int]:
    """The children that are idle or at work."""
    pool = pool_of(system)
    return {child.pid for child in list(pool._children) if child not in pool._starting}


def wait_dead_letter(client: Client, room: str) -> Output:
    return wait_output(client, room, lambda output: output.kind is Kind.DEAD)


@contextmanager
def not_hanging() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < NOT_HANGING_S


# What a cycle can do. ---------------------------------------------------------------------------------


def test_a_coroutine_replies_from_another_process(running: Running, client: Client) -> None:
    running(agents.Isolated)
    pid = client.ask("1", "pid")
    assert pid != os.getpid()
    assert lives(pid)


@pytest.mark.parametrize("agent_class", [agents.Generator, agents.AsyncGenerator])
def test_a_generator_streams_out_of_its_child(agent_class: type[Agent], running: Running, client: Client) -> None:
    running(agent_class)
    client.send("1", "hello")
    wait_output(client, "1", lambda output: output.kind is Kind.REPLY)
    first, second, reply = client.outputs("1")
    assert (first.body, reply.body) == ("one", None)
    assert second.body != os.getpid()
    assert [output.seq for output in (first, second, reply)] == [1, 2, 3]


def test_a_function_has_state_steps_and_shields_in_its_child(running: Running, client: Client) -> None:
    running(agents.Function)
    assert client.ask("1", "hello") == ["hello", 1]
    assert client.ask("1", "again") == ["again", 2]
    step, pid = client.ask("1", "step")
    assert step == 3
    assert pid != os.getpid()


def test_a_child_works_in_the_workers_directory_and_not_on_its_main_thread(running: Running, client: Client) -> None:
    running(agents.Isolated)
    assert client.ask("1", "where") == [os.getcwd(), False]


def test_state_is_the_rooms_whichever_child_runs_it(running: Running, client: Client) -> None:
    running(agents.Isolated)
    assert client.ask("1", ["remember", "a"]) == ["a"]
    client.send("1", "exit")
    wait_dead_letter(client, "1")
    assert client.ask("1", ["remember", "b"]) == ["a", "b"]


def test_a_step_is_done_once_over_a_failure(running: Running, client: Client, tmp_path: Path) -> None:
    running(agents.Retried)
    client.send("1", ["step and fail", str(tmp_path / "count")])
    assert wait_dead_letter(client, "1").error == "RuntimeError: after the step"
    assert (tmp_path / "count").read_text() == "x"


def test_more_chunks_than_may_be_on_their_way_at_once_come_in_order(running: Running, client: Client) -> None:
    running(agents.Isolated)
    assert client.ask("1", ["flood", 1000]) == "flooded"
    assert [output.body for output in client.outputs("1") if output.kind is Kind.CHUNK] == list(range(1000))


def test_a_body_and_a_reply_of_almost_the_limit_pass(running: Running, client: Client) -> None:
    running(agents.Isolated)
    body = "x" * 1_000_000
    assert client.ask("1", body) == body


def test_a_shield_holds_off_an_interrupt(
    running: Running, client: Client, redis: redis_py.Redis, agent: str, tmp_path: Path
) -> None:
    running(agents.Isolated)
    client.send("1", ["shield and sleep", str(tmp_path / "go")])
    [pid] = wait_begun(client, "1")
    assert client.interrupt("1")[0].outcome is Outcome.DEFERRED
    assert lives(pid)
    (tmp_path / "go").touch()
    wait_event(redis, agent, "cycle.interrupted", room="1")
    wait_gone(pid)


# Warm children. ---------------------------------------------------------------------------------------


def test_a_warm_child_is_used_again_after_a_cycle_that_ended_or_failed_by_itself(running: Running, client: Client) -> None:
    running(agents.Isolated)
    first = client.ask("1", "pid")
    client.send("2", "fail")
    wait_dead_letter(client, "2")
    assert client.ask("3", "pid") == first
    assert client.ask("3", "cycles") == 4


@ABORTS
def test_a_child_is_replaced_after_an_abort(verb: Mode, running: Running, client: Client) -> None:
    system = running(agents.Isolated)
    first = client.ask("1", "pid")
    client.send("1", "sleep")
    assert wait_begun(client, "1") == [first]
    getattr(client, verb)("1")
    second = client.ask("2", "pid")
    assert second != first
    assert not lives(first)
    assert ready(system) == {second}


def test_one_more_child_is_ready_than_are_at_work(running: Running, client: Client) -> None:
    system = running(agents.Pair)
    assert len(ready(system)) == 1
    client.send("1", "sleep")
    [pid] = wait_begun(client, "1")
    eventually(lambda: len(ready(system)) == 2, "there is another child")
    assert client.ask("2", "pid") in ready(system) - {pid}


def test_there_are_never_more_children_than_max_processes(running: Running, client: Client) -> None:
    system = running(agents.Pair)
    rooms = [str(number) for number in range(20)]
    for room in rooms:
        client.send(room, "sleep")

    def begun() -> set[str]:
        return {room for room in rooms if list(client.outputs(room))}

    eventually(lambda: len(begun()) == 2, "two have begun")
    pids = [wait_begun(client, room)[0] for room in begun()]
    assert ready(system) == set(pids)
    assert len(pool_of(system)._children) == 2
    assert client.overview().processing == 2, "the others wait for a child"
    for room in begun():
        client.interrupt(room)
    eventually(lambda: len(begun()) == 4, "as soon as they have ended the next begin")
    wait_gone(*pids)
    assert len(pool_of(system)._children) == 2


def test_what_a_cycle_has_left_behind_in_a_warm_child_cannot_send_through_the_next_one(
    running: Running, client: Client
) -> None:
    """row 6"""
    running(agents.Isolated)
    pid = client.ask("1", "leave a thread")
    for _ in range(3):
        assert client.ask("1", "see it try") == pid
    first, *others = client.outputs("1", after=next(o for o in client.outputs("1") if o.kind is Kind.REPLY).id)
    assert {output.kind for output in (first, *others)} == {Kind.REPLY}
    assert {output.body for output in (first, *others)} == {pid}


# Aborts. ----------------------------------------------------------------------------------------------


@ABORTS
@pytest.mark.parametrize(
    ("agent_class", "deed", "code"),
    [
        (agents.Isolated, "sleep", "cancelled"),
        (agents.Hasty, "loop", "killed"),
        (agents.Hasty, "hold the GIL", "killed"),
        (agents.Hasty, "swallow", "killed"),
        (agents.Function, "sleep", "cancelled"),
        (agents.HastyFunction, "swallow", "killed"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_abort_ends_the_child_says_truly_how_and_nothing_appears_afterwards(
    verb: Mode,
    agent_class: type[Agent],
    deed: str,
    code: str,
    running: Running,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
) -> None:
    """rows 6, 28"""
    running(agent_class)
    client.send("1", deed)
    [pid] = wait_begun(client, "1")
    with not_hanging():
        assert getattr(client, verb)("1")[0].outcome is Outcome.APPLIED
        # Its end may be there already.
        *_, last = [output for output in client.outputs("1") if output.kind is Kind.CHUNK and output.body[0] != "closing"]
        assert wait_event(redis, agent, ENDED[verb], room="1")["code"] == code
        wait_gone(pid)
    closing = 1 if verb is Mode.INTERRUPT and issubclass(agent_class, agents.Isolated) else 0
    *before, aborted = client.outputs("1", after=last.id)
    assert [output.body[0] for output in before] == ["closing"] * closing
    assert (aborted.kind, aborted.mode) == (Kind.ABORTED, verb)
    assert client.ask("2", "pid")


@ABORTS
@pytest.mark.parametrize("deed", ["start a process", "start a stubborn process"])
def test_an_abort_ends_what_the_cycle_has_started(
    verb: Mode, deed: str, running: Running, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 28: though the cycle's own code ends at once when it is told to"""
    running(agents.Isolated)
    client.send("1", deed)
    pids = wait_begun(client, "1")
    assert len(pids) == 2
    assert all(map(lives, pids))
    getattr(client, verb)("1")
    assert wait_event(redis, agent, ENDED[verb], room="1")["code"] == "cancelled"
    wait_gone(*pids)


def test_a_stopped_message_is_replayed_after_play(running: Running, client: Client, tmp_path: Path) -> None:
    running(agents.Isolated)
    go = tmp_path / "go"
    client.send("1", ["wait for a file", str(go)])
    [pid] = wait_begun(client, "1")
    client.stop("1")
    wait_gone(pid)
    go.touch()
    client.play("1")
    assert wait_output(client, "1", lambda output: output.kind is Kind.REPLY).body == "went"


def test_a_cycle_that_waits_for_a_child_is_aborted_before_it_has_begun(
    running: Running,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """row 7"""
    monkeypatch.setenv(agents.MARKER, str(tmp_path / "marker"))
    system = running(agents.QuickOnce)
    client.send("1", "exit")
    wait_dead_letter(client, "1")
    client.send("2", "hello")
    eventually(lambda: client.status("2").ticket, "its cycle has its grant")
    eventually(lambda: pool_of(system)._waiting, "and waits for a child")
    assert room_of(system, "2")._watchdog is None, "that does not count for max_cycle"
    client.stop("2")
    assert wait_event(redis, agent, "cycle.stopped", room="2")["code"] == "not started"
    assert [output.kind for output in client.outputs("2")] == [Kind.ABORTED]


def test_a_cycle_that_runs_for_too_long_is_a_failed_attempt_and_its_child_ends(running: Running, client: Client) -> None:
    """row 30"""
    running(agents.Overdue)
    client.send("1", "loop")
    [pid] = wait_begun(client, "1")
    assert wait_dead_letter(client, "1").error == "it ran longer than max_cycle, 0.3 s"
    wait_gone(pid)


# Hooks. -----------------------------------------------------------------------------------------------


def test_the_hook_runs_in_a_child_knows_what_was_sent_and_may_change_the_state(running: Running, client: Client) -> None:
    """row 22"""
    running(agents.Isolated)
    client.send("1", "sleep")
    [pid] = wait_begun(client, "1")
    client.interrupt("1")
    closing = wait_output(client, "1", lambda output: output.body is not None and output.body[0] == "closing")
    _, hook_pid, code, sent = closing.body
    assert hook_pid not in (pid, os.getpid())
    assert (code, sent) == ("cancelled", [["begun", pid]])
    assert client.ask("1", ["remember", "then"]) == ["interrupted", "then"]
    assert client.ask("1", "pid") == hook_pid, "its child is used again"


@pytest.mark.parametrize("end", ["exit", "fail", "and hang in the hook"])
def test_a_hook_that_fails_hangs_or_ends_its_process_holds_up_nothing(end: str, running: Running, client: Client) -> None:
    """row 22"""
    running(agents.HastyHook)
    client.send("1", ["sleep", end])
    wait_begun(client, "1")
    with not_hanging():
        client.interrupt("1")
        aborted = wait_output(client, "1", lambda output: output.kind is Kind.ABORTED)
    assert [output.kind for output in client.outputs("1")] == [Kind.CHUNK, Kind.ABORTED]
    assert aborted.mode == Mode.INTERRUPT
    assert client.ask("1", ["remember", "only this"]) == ["only this"]


# Children that end by themselves. ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deed", "how"),
    [("exit", "ended with exit code 3"), ("kill", "was ended by SIGKILL"), ("crash", "was ended by SIGSEGV")],
)
def test_a_child_that_dies_by_itself_is_a_failed_attempt_and_the_room_goes_on(
    deed: str, how: str, running: Running, client: Client
) -> None:
    """row 28"""
    running(agents.Retried)
    client.send("1", deed)
    assert wait_dead_letter(client, "1").error == f"its process {how}"
    assert [output.kind for output in client.outputs("1")] == [Kind.FAILED, Kind.FAILED, Kind.DEAD]
    assert client.ask("1", "on we go") == "on we go"


@pytest.mark.parametrize(("deed", "error"), [("no text", r"OSError: caf\udce9"), ("leave", "GeneratorExit")])
def test_whatever_a_handler_raises_in_its_child_is_a_failed_attempt(
    deed: str, error: str, running: Running, client: Client
) -> None:
    running(agents.Isolated)
    client.send("1", deed)
    assert wait_dead_letter(client, "1").error == error
    assert client.ask("1", "on we go") == "on we go"


def test_what_a_dead_child_had_started_ends_with_it(running: Running, client: Client) -> None:
    running(agents.Isolated)
    client.send("1", "start a process and exit")
    pids = wait_begun(client, "1")
    assert wait_dead_letter(client, "1").error == "its process ended with exit code 3"
    wait_gone(*pids)


def test_an_idle_child_that_dies_is_replaced_when_the_next_cycle_wants_one(running: Running, client: Client) -> None:
    system = running(agents.Isolated)
    pid = client.ask("1", "pid")
    for each in ready(system):
        os.kill(each, signal.SIGKILL)
    eventually(lambda: pid not in ready(system), "it is known to be dead")
    assert client.ask("1", "pid") != pid


@pytest.mark.parametrize(
    "nonsense",
    [["finished", 0], ["no such word"], ["push", "1", b""], [], ["ask", 1, 1, "flushall", []]],
    ids=lambda frame: " ".join(map(str, frame)),
)
def test_a_child_that_says_what_no_child_says_is_a_failed_attempt(
    nonsense: list[object], running: Running, client: Client
) -> None:
    running(agents.Isolated)
    client.send("1", ["talk nonsense", nonsense])
    assert "its process was ended, as it said what no child says" in str(wait_dead_letter(client, "1").error)
    assert client.ask("1", "on we go") == "on we go"


def test_a_child_ignores_that_it_is_told_to_end_but_not_what_it_forks(running: Running, client: Client, tmp_path: Path) -> None:
    """Service managers tell all processes of a worker at once."""
    running(agents.Pair)
    client.send("1", ["wait for a file", str(tmp_path / "go")])
    [pid] = wait_begun(client, "1")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert client.ask("2", "end a fork") == signal.SIGTERM
    (tmp_path / "go").touch()
    assert wait_output(client, "1", lambda output: output.kind is Kind.REPLY).body == "went"


# The end of the worker. -------------------------------------------------------------------------------


def test_a_stop_of_the_system_with_a_hung_child_leaves_no_process(running: Running, client: Client) -> None:
    system = running(agents.Pair)
    client.send("1", "loop")
    client.send("2", "start a stubborn process")
    [pid], grandchildren = wait_begun(client, "1"), wait_begun(client, "2")
    children = ready(system)
    assert pid in children
    with not_hanging():
        system.stop(timedelta(0))
    for each in children:
        with pytest.raises(ProcessLookupError):  # not even a zombie
            os.kill(each, 0)
    wait_gone(*grandchildren)
    assert client.status("1").attempt == 0, "it was given back"


def test_a_cycle_may_finish_within_the_grace(running: Running, client: Client, tmp_path: Path) -> None:
    """row 38"""
    system = running(agents.Isolated)
    client.send("1", ["wait for a file", str(tmp_path / "go")])
    wait_begun(client, "1")
    stopping = threading.Thread(target=system.stop)
    stopping.start()
    eventually(lambda: not system.ready, "it drains")
    (tmp_path / "go").touch()
    stopping.join()
    assert wait_output(client, "1", lambda output: output.kind is Kind.REPLY).body == "went"


def test_a_superseded_worker_ends_the_children_at_work(running: Running, client: Client) -> None:
    older = running(agents.Hasty, name="twin", lease=timedelta(seconds=1))
    client.send("1", "loop")
    [pid] = wait_begun(client, "1")
    running(agents.Isolated, name="twin")
    with pytest.raises(Superseded):
        older.wait(NOT_HANGING_S)
    wait_gone(pid)


def test_a_dump_names_the_children_and_what_they_are_at(running: Running, client: Client) -> None:
    system = running(agents.Isolated)
    client.send("1", "sleep")
    [pid] = wait_begun(client, "1")
    assert f"child processes: 1\n  pid {pid} ticket {client.status('1').ticket}\n" in system.dump()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_starts_and_stops_leave_no_file_no_thread_and_no_child(redis_url: str, agent: str, client: Client) -> None:
    def left() -> tuple[int, int, int]:
        gc.collect()
        children = sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))
        return len(os.listdir("/proc/self/fd")), threading.active_count(), children

    def round_trip(number: int) -> None:
        with ActorSystem(agents.Pair, agent=agent, redis=redis_url):
            client.ask(str(number), "hello")  # so that a second child is on its way

    round_trip(0)
    before = left()
    for number in range(1, 11):
        round_trip(number)
    eventually(lambda: left() <= before, "nothing is left")
