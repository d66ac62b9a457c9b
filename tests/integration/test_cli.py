"""The commands that talk to rooms: what they do, print and exit with."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import pty
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import greenroom
from greenroom import Client, Kind, Phase, RedisUnavailable
from greenroom.commands import rooms, run
from greenroom.protocol.server import RedisServer
from integration.agents import Director, wait_output
from integration.command import Shell, all_of
from integration.conftest import Running

from helpers import unique
from started import Started

GREENROOM = [sys.executable, "-m", "greenroom"]


# Messages. ------------------------------------------------------------------------------------------


def test_send_prints_the_messages_id_and_the_room_has_the_text(shell: Shell, client: Client) -> None:
    out, _ = shell("send", "42", "hello")
    assert client.status("42").waiting == 1
    [sent] = shell.json("send", "42", "again")
    assert sent["room"] == "42"
    assert sent["message"] > int(out)


def test_send_with_the_same_key_sends_once(shell: Shell, client: Client) -> None:
    assert shell("send", "42", "hello", "--key", "k") == shell("send", "42", "hello", "--key", "k")
    assert client.status("42").waiting == 1


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["hello"], "hello"),
        (["7"], "7"),
        (["--", "--data"], "--data"),
        (["--data", '{"order": [7, null]}'], {"order": [7, None]}),
        (["--data", '"text"'], "text"),
        (["-"], "two\nlines"),
    ],
)
def test_a_text_is_sent_as_it_is_data_as_json_and_a_dash_reads_stdin(
    arguments: list[str],
    body: Any,
    shell: Shell,
    running: Running,
    director: Director,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running(director.agent())
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    out, _ = shell("ask", "--json", "42", *arguments)
    assert json.loads(out)["body"] == body


@pytest.mark.parametrize(
    "arguments", [[], ["hi", "--data", "1"], ["--data", "{"], ["--data", "[" * 100_000], ["--data", "9" * 30]]
)
def test_no_body_two_bodies_or_broken_json_is_wrong_usage(arguments: list[str], shell: Shell, client: Client) -> None:
    for command in ("send", "ask"):
        shell.refused(command, "42", *arguments, code=2)
    assert client.status("42").waiting == 0


def test_stdin_that_is_no_text_is_wrong_usage(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8"))
    assert "stdin" in shell.refused("send", "42", "-", code=2)


def test_ask_prints_a_text_as_it_is_and_anything_else_as_json(shell: Shell, running: Running, director: Director) -> None:
    running(director.agent())
    assert shell("ask", "42", "naïve\t✓")[0] == "naïve\t✓\n"
    assert shell("ask", "42", "--data", '{"a": 1}')[0] == '{"a": 1}\n'


def test_what_json_has_no_form_for_is_printed_as_text(
    shell: Shell, client: Client, running: Running, director: Director
) -> None:
    running(director.agent())
    client.send("42", "wait")
    at, name = dt.datetime(2020, 1, 2, tzinfo=dt.UTC), uuid.uuid4()
    director.run("42").finish({1: at, b"key": name, "bytes": b"\xff", "huge": float("inf"), "nan": float("nan")})
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    body = {"1": "2020-01-02T00:00:00+00:00", '"key"': str(name), "bytes": "\\xff", "huge": "inf", "nan": "nan"}
    assert [output["body"] for output in shell.json("tail", "42")] == [body]


def test_ask_fails_when_the_message_is_interrupted_dead_or_late(
    shell: Shell, client: Client, running: Running, director: Director
) -> None:
    running(director.agent(max_attempts=1))
    assert "dead letter: RuntimeError: fail" in shell.refused("ask", "42", "fail", code=1)
    assert "stays in its queue" in shell.refused("ask", "42", "wait", "--timeout", "0.2", code=1)
    assert client.status("42").waiting == 1


def test_ask_with_json_prints_each_output_as_it_comes(
    agent: str, redis_url: str, running: Running, director: Director, client: Client
) -> None:
    running(director.agent())
    command = [*GREENROOM, "ask", "42", "wait", "--json", "--agent", agent, "--redis", redis_url]
    with Started(command, stdout=subprocess.PIPE, text=True) as asking:
        try:
            assert asking.stdout is not None
            run = director.run("42")
            for word in ("one", {"n": 2}):
                run.send(word)
                assert json.loads(asking.stdout.readline())["body"] == word
            run.finish()
            assert [json.loads(line)["kind"] for line in asking.stdout] == ["reply"]
            assert asking.wait(60) == 0
        finally:
            asking.kill()


def test_ask_shows_the_answer_on_a_terminal_as_it_comes(
    agent: str, redis_url: str, running: Running, director: Director, client: Client
) -> None:
    running(director.agent())
    ours, theirs = pty.openpty()
    command = [*GREENROOM, "ask", "42", "wait", "--agent", agent, "--redis", redis_url]
    with Started(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as asking:
        try:
            run, shown = director.run("42"), ""
            for word in ("Let ", "me see"):
                run.send(word)
                while word not in shown:
                    shown += os.read(ours, 1024).decode()
            run.finish()
            _, err = asking.communicate(timeout=60)
            assert (asking.returncode, err) == (0, "")
            assert shown + os.read(ours, 1024).decode() == "Let me see\r\n"
        finally:
            asking.kill()
            os.close(theirs)
            os.close(ours)


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on stdout passes for a terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


@pytest.mark.parametrize(
    ("pieces", "reply", "shown"),
    [
        ([], "hello", "hello\n"),
        ([], None, "null\n"),
        (["a", "b"], None, "ab\n"),
        (["a\n", "", "b\n"], None, "a\nb\n"),
        (["a", {"n": 1}, "b", ""], None, 'a\n{"n": 1}\nb\n'),
        (["looking… "], {"n": 1}, 'looking… \n{"n": 1}\n'),
        (["tab\t \x1b[31m\x07\u200d"], "\x9b", "tab\t \\x1b[31m\\x07\u200d\n\\x9b\n"),
    ],
)
def test_a_terminal_gets_text_joined_anything_else_as_json_and_nothing_that_it_would_obey(
    pieces: list[Any],
    reply: Any,
    shown: str,
    shell: Shell,
    client: Client,
    running: Running,
    director: Director,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_terminal(monkeypatch)
    running(director.agent())
    client.send("42", "wait", key="k")
    run = director.run("42")
    for piece in pieces:
        run.send(piece)
    run.finish(reply)
    assert shell("ask", "42", "wait", "--key", "k") == (shown, "")


def test_a_terminal_is_told_where_an_answer_was_broken_off_and_begins_anew(
    shell: Shell, client: Client, running: Running, director: Director, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_terminal(monkeypatch)
    running(director.agent())
    client.send("42", "wait", key="k")
    run = director.run("42")
    run.send("half an ans")
    client.stop("42")
    run.wait_cancelled()
    client.play("42")
    run = director.run("42")
    run.fail(RuntimeError("oh\nno"))
    director.run("42").finish("whole")
    out, err = shell("ask", "42", "wait", "--key", "k")
    assert out == "half an ans\nwhole\n"
    assert [line.partition("(")[2].partition(")")[0] for line in err.splitlines()] == ["stop", "RuntimeError: oh\\nno"]


@pytest.mark.parametrize("how", ["pipe", "terminal", "json"])
@pytest.mark.parametrize(
    ("end", "words"), [("interrupt", "was interrupted"), ("fail", "dead letter"), ("discard", "discarded")]
)
def test_ask_exits_with_1_and_one_line_when_the_message_is_not_answered(
    how: str,
    end: str,
    words: str,
    shell: Shell,
    client: Client,
    running: Running,
    director: Director,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if how == "terminal":
        as_terminal(monkeypatch)
    running(director.agent(max_attempts=1))
    if end == "discard":
        client.pause("42")
    message = client.send("42", "wait", key="k")
    if end == "discard":
        client.discard("42", message)
    elif end == "interrupt":
        director.run("42")
        client.interrupt("42")
    else:
        director.run("42").fail(RuntimeError("no"))
    out, err = shell("ask", "42", "wait", "--key", "k", *(["--json"] if how == "json" else []), code=1)
    ends = {"interrupt": ["aborted"], "fail": ["failed", "dead"], "discard": ["discarded"]}
    assert [json.loads(line)["kind"] for line in out.splitlines()] == (ends[end] if how == "json" else [])
    assert words in err.splitlines()[-1]
    assert len(err.splitlines()) == (2 if (how, end) == ("terminal", "fail") else 1)


def test_ask_on_a_terminal_that_times_out_ends_the_line_and_exits_with_1(
    shell: Shell, client: Client, running: Running, director: Director, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_terminal(monkeypatch)
    running(director.agent())
    client.send("42", "wait", key="k")
    director.run("42").send("half an ans")
    out, err = shell("ask", "42", "wait", "--key", "k", "--timeout", "3", code=1)
    assert out == "half an ans\n"
    assert "stays in its queue" in err


def test_a_full_queue_refuses_the_message(shell: Shell, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(client.agent, redis=os.environ["GREENROOM_REDIS_URL"], queue_limit=1) as narrow:
        monkeypatch.setattr("greenroom.commands.clients.Client", lambda *args, **options: narrow)
        shell("send", "42", "one")
    with Client(client.agent, redis=os.environ["GREENROOM_REDIS_URL"], queue_limit=1) as narrow:
        monkeypatch.setattr("greenroom.commands.clients.Client", lambda *args, **options: narrow)
        assert "not accepted" in shell.refused("send", "42", "two", code=1)


def test_discard_drops_the_message_and_refuses_one_that_is_not_there_or_in_processing(
    shell: Shell, client: Client, running: Running, director: Director
) -> None:
    message = client.send("42", "hello")
    assert shell("discard", "42", str(message)) == ("", "")
    assert client.status("42").waiting == 0
    assert "no message" in shell.refused("discard", "42", str(message), code=1)
    running(director.agent())
    message = client.send("42", "wait")
    director.run("42")
    assert "interrupt it instead" in shell.refused("discard", "42", str(message), code=1)


# Signals. -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "outcome", "hold"), [("interrupt", "idle", None), ("stop", "applied", "stop"), ("pause", "applied", "pause")]
)
def test_each_signal_does_what_its_name_says_and_answers_a_receipt_a_room(
    mode: str, outcome: str, hold: str | None, shell: Shell, client: Client
) -> None:
    receipts = shell.json(mode, "42", "43", "--reason", "why", "--by", "ann", "--cid", "c-1")
    assert [(r["room"], r["mode"], r["outcome"], r["reason"], r["by"], r["cid"]) for r in receipts] == [
        (room, mode, outcome, "why", "ann", "c-1") for room in ("42", "43")
    ]
    assert all(dt.datetime.fromisoformat(receipt["at"]).tzinfo for receipt in receipts)
    for room in ("42", "43"):
        held = client.status(room).hold
        assert (held.mode if held else None) == hold


def test_play_lets_a_stopped_room_go_on(shell: Shell, client: Client) -> None:
    shell("stop", "42")
    assert [receipt["outcome"] for receipt in shell.json("play", "42")] == ["applied"]
    assert client.status("42").hold is None


@pytest.mark.parametrize("mode", ["interrupt", "stop", "pause", "play"])
def test_each_signal_reaches_the_whole_agent_with_everywhere(mode: str, shell: Shell, client: Client) -> None:
    receipts = shell.json(mode, "--everywhere")
    assert [(receipt["room"], receipt["mode"]) for receipt in receipts] == [(None, mode)]
    hold = client.overview().hold
    assert (hold.mode if hold else None) == (mode if mode in ("stop", "pause") else None)


@pytest.mark.parametrize("mode", ["interrupt", "stop", "pause", "play"])
@pytest.mark.parametrize("targets", [[], ["42", "--everywhere"], ["42", "42"], ["no room"], [""]])
def test_a_signal_without_a_target_or_with_a_wrong_one_is_wrong_usage(mode: str, targets: list[str], shell: Shell) -> None:
    shell.refused(mode, *targets, code=2)


def test_interrupt_with_a_message_acts_on_that_message_only(
    shell: Shell, client: Client, running: Running, director: Director
) -> None:
    running(director.agent())
    message = client.send("42", "wait")
    run = director.run("42")
    assert [r["outcome"] for r in shell.json("interrupt", "42", "--message", str(message + 1))] == ["idle"]
    assert [r["outcome"] for r in shell.json("interrupt", "42", "--message", str(message))] == ["applied"]
    run.wait_cancelled()
    shell.refused("interrupt", "42", "43", "--message", str(message), code=2)


def test_a_signals_id_used_for_another_signal_is_refused(shell: Shell) -> None:
    shell("stop", "42", "--cid", "c")
    assert "c was used for another signal" in shell.refused("play", "42", "--cid", "c", code=2)


def test_receipts_are_a_table_with_tabs_when_stdout_is_no_terminal(shell: Shell) -> None:
    header, row = shell("stop", "42", "--cid", "c")[0].splitlines()
    assert header.split("\t") == ["room", "mode", "outcome", "message", "at", "cid"]
    assert row.startswith("42\tstop\tapplied\t-\t")
    assert shell("play", "--everywhere")[0].splitlines()[1].startswith("(everywhere)\tplay\talready\t-\t")


# How it is. -----------------------------------------------------------------------------------------


def test_status_of_a_room_says_what_it_does_and_why_it_is_held(shell: Shell, client: Client) -> None:
    client.send("42", "hello")
    client.stop("42", by="ann", reason="line one\nline two \x1b[31m")
    (room,) = shell.json("status", "42")
    assert (room["room"], room["phase"], room["waiting"], room["hold"]["mode"]) == ("42", "held", 1, "stop")
    facts = dict(line.split(": ", 1) for line in shell("status", "42")[0].splitlines())
    assert facts["phase"] == "held"
    assert facts["waiting"] == "1"
    assert facts["hold"].startswith("stop by ann at 20")
    assert facts["hold"].endswith(": line one\\nline two \\x1b[31m")


def test_status_of_a_room_says_that_its_whole_agent_is_held(shell: Shell, client: Client) -> None:
    client.stop(everywhere=True, by="ann")
    assert "agent: stop by ann at 20" in shell("status", "42")[0]


def test_status_without_a_room_is_the_agent_as_a_whole(shell: Shell, client: Client) -> None:
    client.send("42", "hello")
    client.pause(everywhere=True)
    (agent,) = shell.json("status")
    assert (agent["agent"], agent["rooms"], agent["held"], agent["hold"]["mode"]) == (client.agent, 1, 1, "pause")
    assert f"agent: {client.agent}\nhold: pause by test at 20" in shell("status")[0]


def test_rooms_lists_every_room_one_a_line(shell: Shell, client: Client) -> None:
    for room in ("[red]42[/]", "43"):
        client.send(room, "hello")
    client.stop("43")
    assert {(room["room"], room["phase"]) for room in shell.json("rooms")} == {("[red]42[/]", "queued"), ("43", "held")}
    header, *rows = shell("rooms")[0].splitlines()
    assert header.split("\t")[:4] == ["room", "phase", "hold", "waiting"]
    assert {tuple(row.split("\t")[:4]) for row in rows} == {("[red]42[/]", "queued", "-", "1"), ("43", "held", "stop", "1")}


def test_tail_shows_what_a_room_has_sent_and_after_an_id_only_what_came_later(
    shell: Shell, client: Client, running: Running, director: Director
) -> None:
    running(director.agent())
    client.send("42", "wait")
    run = director.run("42")
    run.send("one\ntwo")
    run.finish({"n": 1})
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    chunk, reply = shell.json("tail", "42")
    assert [(o["kind"], o["body"], o["seq"]) for o in (chunk, reply)] == [("chunk", "one\ntwo", 1), ("reply", {"n": 1}, 2)]
    assert shell.json("tail", "42", "--after", chunk["id"]) == [reply]
    line = shell("tail", "42", "--after", chunk["id"])[0]
    assert line == f'{reply["id"]}\treply\t{reply["message"]}\t{reply["ticket"]}\t2\t{{"n": 1}}\n'
    assert '"one\\ntwo"' in shell("tail", "42")[0].splitlines()[0]


def test_tail_says_by_which_signal_a_cycle_ended_and_how_it_failed(
    shell: Shell, client: Client, running: Running, director: Director
) -> None:
    running(director.agent(max_attempts=1))
    client.send("42", "wait")
    director.run("42")
    client.interrupt("42")
    client.send("42", "fail: \x1b")
    wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    says = [line.split("\t")[-1] for line in shell("tail", "42")[0].splitlines()]
    assert says[0] == "interrupt"
    assert says[-1] == "RuntimeError: fail: \\x1b"


def test_tail_follows_until_ctrl_c(agent: str, redis_url: str, running: Running, director: Director, client: Client) -> None:
    running(director.agent())
    command = [*GREENROOM, "tail", "42", "--follow", "--json", "--agent", agent, "--redis", redis_url]
    with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        try:
            assert tail.stdout is not None
            for word in ("one", "two"):
                client.ask("42", word)
                assert json.loads(tail.stdout.readline())["body"] == word
            tail.send_signal(signal.SIGINT)
            assert "".join(tail.communicate(timeout=30)).strip() == ""
        finally:
            tail.kill()
    assert tail.returncode == 130


def test_a_reader_that_has_seen_enough_is_no_error(agent: str, redis_url: str, client: Client) -> None:
    client.send("42", "hello")
    reading, writing = os.pipe()
    os.close(reading)
    command = [*GREENROOM, "rooms", "--agent", agent, "--redis", redis_url]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", [["status", "42"], ["rooms"], ["stop", "42"], ["tail", "42"]])
def test_a_terminal_gets_colours_or_a_table_and_nothing_that_is_markup_in_a_name(
    command: list[str], agent: str, redis_url: str, client: Client, running: Running, director: Director
) -> None:
    running(director.agent())
    client.ask("42", "[bold]hello[/bold]")
    client.stop("42", reason="[red]why[/red]")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    arguments = [*GREENROOM, *command, "--agent", agent, "--redis", redis_url]
    done = subprocess.run(arguments, stdout=theirs, stderr=subprocess.PIPE, timeout=60, env=environment, check=False)
    os.close(theirs)
    shown = all_of(ours).decode()
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\x1b[" in shown
    assert {"status": "[red]why[/red]", "rooms": "42", "stop": "already", "tail": "[bold]hello[/bold]"}[command[0]] in shown


# Mistakes. ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["status", "--bogus"], "No such option"),
        (["ask"], "Missing argument 'ROOM' (see greenroom ask --help)"),
        (["send"], "name a room and what to send, or --file"),
        (["stauts"], "Did you mean 'status'?"),
        (["discard", "42", "abc"], "Invalid value"),
        (["discard", "42", "0"], "Invalid value"),
        (["rooms", "--phase", "bogus"], "'--phase': 'bogus' is not one of 'queued'"),
        (["ask", "42", "hi", "--timeout", "0"], "--timeout"),
        (["send", "no room", "hi"], "white space"),
        (["status", "\t"], "white space"),
        (["tail", ""], "1 to 256 bytes"),
        (["tail", "42", "--after", "garbage"], "after"),
        (["status", "--agent", "a{b}"], "braces"),
        (["status", "--redis", "http://example.org"], "not a Redis URL"),
        (["status", "--redis", "redis://127.0.0.1:1", "--embedded", "dir"], "not both"),
        (["stop", "42", "--reason", "x" * 2000], "reason"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments: list[str], words: str, shell: Shell) -> None:
    assert words in shell.refused(*arguments, code=2)


def test_the_agents_name_must_be_given(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GREENROOM_AGENT")
    assert "--agent" in shell.refused("status", code=2)


def test_the_version_is_told(shell: Shell) -> None:
    assert shell("--version") == (f"greenroom {greenroom.__version__}\n", "")


@pytest.mark.parametrize("command", [["status"], ["run", "json:JSONDecoder"]])
def test_who_has_named_no_redis_is_told_so_when_the_usual_one_is_not_there(
    command: list[str], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RedisUnavailable("nothing there")

    monkeypatch.delenv("GREENROOM_REDIS_URL")
    monkeypatch.setattr(rooms, "reading", refuse)
    monkeypatch.setattr(run, "load_agent", refuse)
    _, err = shell(*command, code=3)
    assert err.splitlines() == [
        "greenroom: nothing there",
        "greenroom: redis://127.0.0.1:6379/0 was tried, since no other was named: "
        "--redis URL, $GREENROOM_REDIS_URL or --embedded DIR",
    ]
    assert shell.refused(*command, "--redis", "redis://127.0.0.1:6379", code=3)
    assert shell.refused(*command, "--embedded=data", code=3)
    monkeypatch.setenv("GREENROOM_REDIS_URL", "redis://127.0.0.1:6379")
    assert shell.refused(*command, code=3)


def test_help_is_what_the_bare_command_prints(shell: Shell) -> None:
    out, err = shell()
    assert "Usage: greenroom" in out
    assert err == ""
    assert shell("--help")[0] == out


@pytest.mark.parametrize("command", [["status"], ["status", "42"], ["stop", "42"], ["send", "42", "hi"], ["ask", "42", "hi"]])
def test_a_redis_that_cannot_be_reached_is_one_line_and_exit_code_3(
    command: list[str], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.commands.clients.PATIENCE_S", 0.2)
    assert "cannot be reached" in shell.refused(*command, "--redis", "redis://ann:secret@127.0.0.1:1", code=3)


def test_a_wrong_password_is_exit_code_3_and_is_not_shown(shell: Shell, redis_server: RedisServer) -> None:
    url = f"redis://{unique('nobody')}:secret@127.0.0.1:{redis_server.port}"
    line = shell.refused("status", "--redis", url, code=3)
    assert "password" in line
    assert "secret" not in line


def test_client_commands_find_the_embedded_server_and_start_none(shell: Shell, redis_dir: Path) -> None:
    assert "no embedded Redis runs" in shell.refused("status", "--embedded", str(redis_dir), code=3)
    assert not redis_dir.exists()
    with RedisServer(redis_dir) as server:
        shell("send", "42", "hello", "--embedded", str(redis_dir))
        with Client(os.environ["GREENROOM_AGENT"], redis=server.url) as client:
            assert client.status("42").phase is Phase.QUEUED
    shell.refused("status", "--embedded", str(redis_dir), code=3)


def test_the_embedded_server_may_be_named_by_a_variable_and_a_url_comes_before_it(
    shell: Shell, client: Client, redis_dir: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setenv("GREENROOM_EMBEDDED", str(redis_dir))
    shell("send", "42", "by the URL's variable")
    monkeypatch.delenv("GREENROOM_REDIS_URL")
    shell("send", "42", "by its option", "--redis", redis_url)
    assert client.status("42").waiting == 2
    assert f"no embedded Redis runs in {redis_dir}" in shell.refused("status", code=3)
    with RedisServer(redis_dir):
        shell("send", "42", "hello")
        assert shell.json("status", "42")[0]["waiting"] == 1
    assert "no embedded Redis runs in" in shell.refused("status", "--embedded", str(redis_dir), code=3)
