"""Guards of the scripts, each broken in one place: the explorer must notice every one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from greenroom.protocol.scripts import Script, scripts


@dataclass(frozen=True, slots=True)
class Mutation:
    """One replacement in one Lua file, and the invariant whose guard it breaks."""

    name: str
    invariant: int
    file: str
    old: str
    new: str

    def scripts(self) -> dict[str, Script]:
        """The scripts that are changed by it."""
        source = files("greenroom.protocol").joinpath("lua", f"{self.file}.lua").read_text()
        found = source.count(self.old)
        assert found == 1, f"{self.name}: the text to replace occurs {found} times in {self.file}.lua, want 1"
        changed = source.replace(self.old, self.new)
        names = scripts() if self.file == "prelude" else (self.file,)
        return {name: _replaced(scripts()[name], source, changed) for name in names}


def _replaced(script: Script, old: str, new: str) -> Script:
    assert script.text.count(old) == 1
    whole = script.text.replace(old, new)
    return Script(script.name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


STATE_FIRST = "if state ~= '=' then call('SET', room_key(room) .. ':state', state) end\nlocal why ="

MUTATIONS = (
    Mutation("an aborted cycle goes on sending", 1, "prelude", "  return h.abort\nend", "  return nil\nend"),
    Mutation("a stop does not abort", 1, "control", "if mode == 'stop' then abort(h) end", ""),
    Mutation("a shield goes down and forgets", 1, "shield", "h.deferred = nil, h.deferred, nil", "h.deferred = nil, nil, nil"),
    Mutation("a stopped room is granted", 2, "prelude", "not head or h.mode or", "not head or"),
    Mutation("a stopped agent is granted", 2, "prelude", "if not head or h.mode or agent_mode()", "if not head or h.mode"),
    Mutation("a retry time is not waited for", 2, "prelude", "ms_of(h.retry_at) > now_ms then", "ms_of(h.retry_at) < 0 then"),
    Mutation("a message is enqueued twice", 3, "enqueue", "if seen then", "if seen and seen == '' then"),
    Mutation("an ended message stays queued", 3, "prelude", "  call('XDEL', messages_key(h.room), id)\n", ""),
    Mutation("a dead letter is put back and kept", 3, "requeue", "call('XDEL', G .. ':dead', entry_id)", ""),
    Mutation("a dead letter is dropped and kept", 3, "drop", "call('XDEL', G .. ':dead', entry_id)", ""),
    Mutation("a drop that is sent again finds nothing", 3, "drop", "if before then", "if false then"),
    Mutation("the newest message is granted", 4, "prelude", "'-', '+', 'COUNT', 1)[1]", "'+', '-', 'COUNT', 1)[1]"),
    Mutation("any ticket is the live one", 5, "prelude", "if h.cycle ~= ticket then return 'fenced' end", ""),
    Mutation("a zombie settles", 5, "settle", "if h.cycle ~= ticket then return { 'fenced', '' } end", ""),
    Mutation("any worker claims", 5, "claim", "ready, ready, 1, worker) == 0 then", "ready, ready, 1, worker) < 0 then"),
    Mutation("an old incarnation claims", 5, "claim", "if current and current >", "if false and nil >"),
    Mutation("a late claim claims again", 5, "claim", "if (' ' .. claims .. ' '):find(", "if (' '):find("),
    Mutation("a stop costs an attempt", 6, "settle", "h.attempt = tostring(attempt - 1)", ""),
    Mutation("a stop before a crash costs an attempt", 6, "prelude", "h.attempt = h.attempt - 1", ""),
    Mutation("a crash costs nothing", 6, "prelude", "if abort then\n", "if true then\n"),
    Mutation("a repeated claim charges", 6, "prelude", "if h.request == request then", "if false then"),
    Mutation("the budget has no end", 6, "prelude", ">= tonumber(ask.max_attempts) then", "> tonumber(ask.max_attempts) then"),
    Mutation("a stopped room keeps its entry", 7, "prelude", "    unready(h)\n    call('SADD'", "    call('SADD'"),
    Mutation("a held room is not noted", 7, "prelude", "call('SADD', HELD, h.room)", ""),
    Mutation("a played room stays held", 7, "prelude", "if h.phase == 'held' then call('SREM', HELD, h.room) end", ""),
    Mutation("a played agent wakes no room", 7, "control", "ipairs(whole and call('SMEMBERS', HELD) or {})", "ipairs({})"),
    Mutation("the rooms of the dead are left", 7, "adopt", "XINFO', 'CONSUMERS', READY, GROUP)", "XRANGE', READY, '1', '1')"),
    Mutation("a signal is applied again", 8, "control", "if known then", "if known and known == '' then"),
    Mutation("a signal's id is taken for another", 8, "control", ".target ~= target then", ".target == '' then"),
    Mutation("each worker applies what it reads", 8, "prelude", "tonumber(seq) <= tonumber(cursor_seq)", "tonumber(seq) < 0"),
    Mutation("an interrupt hits the next message", 8, "control", "(only ~= '' and only ~= id)", "false"),
    Mutation("an interrupt overrides a stop", 8, "control", "whole == 'stop' or h.mode == 'stop'", "whole == 'stop'"),
    Mutation("the last abort wins", 8, "control", "if h.abort or h.deferred then return 'already' end", ""),
    Mutation("an aborted commit stores its state", 9, "commit", "local why =", STATE_FIRST),
    Mutation("a commit keeps the old state", 9, "commit", "elseif state == '-' then", "elseif false then"),
    Mutation("a room is never forgotten", 10, "prelude", "call('EXPIRE', room_key(h.room), FORGET_S)", "call('EXISTS', ROOMS)"),
    Mutation("an idle room stays listed", 10, "prelude", "call('ZREM', ROOMS, h.room)", "call('EXISTS', ROOMS)"),
    Mutation("a room with work expires", 10, "prelude", "call('PERSIST', room_key(h.room))", "call('EXISTS', ROOMS)"),
    Mutation("a shield does not defer", 1, "control", "if not h.shield then", "if true then"),
    Mutation("a deferred interrupt dies with its worker", 1, "prelude", "(h.deferred == 'interrupt' and 'interrupt')", "nil"),
    Mutation("a failure hides an interrupt", 3, "settle", "if abort == 'interrupt' and how ~= 'consume' or", "if"),
    Mutation("a failure hides a stop", 6, "settle", " or abort == 'stop' and how ~= 'release' then", " then"),
    Mutation("anyone consumes", 3, "settle", "if how == 'consume' and not abort then", "if false then"),
    Mutation("a message at work is discarded", 3, "discard", "if h.cycle and h.processing == id then", "if false then"),
    Mutation("a room at work is given back", 5, "release", "h.cycle or", ""),
    Mutation("an old incarnation renews", 5, "heartbeat", "elseif current and current >", "elseif false and nil >"),
    Mutation("who lost a room takes its next message", 6, "prelude", "ask.next == '1' and h.owner and", "ask.next == '1' and"),
    Mutation("who is superseded takes the next message", 6, "prelude", "h.owner and not superseded(h, ask.request)", "h.owner"),
    Mutation("a worker that is too old keeps the room", 7, "settle", "ask.next = ''", ""),
    Mutation("an old incarnation leaves", 7, "leave", "if current and current ~= incarnation then", "if false then"),
    Mutation(
        "a room that is given back has an owner", 7, "prelude", "  unready(h)\n  park(h)\n  remember", "  park(h)\n  remember"
    ),
    Mutation(
        "the last steps are found by the next message", 3, "prelude", "call('UNLINK', room_key(h.room) .. ':steps')\n", "\n"
    ),
    Mutation("chunks are sent twice", 3, "emit", "if seq > last then", "if true then"),
    Mutation("a failed step counts as begun", 3, "step", "call('HDEL', steps, name)", ""),
    Mutation("anyone's step is forgotten", 3, "step", "if value == '?' .. ticket then call", "if value then call"),
    Mutation("a step is done twice", 3, "step", "if value and value:sub(1, 1) == '!' then", "if false then"),
    Mutation("a chunk goes out after a stop", 12, "deliver", "(ticket == live and abort) or", ""),
    Mutation(
        "a chunk goes out after the end of its cycle", 12, "prelude", "elseif kind == 'aborted' then", "elseif false then"
    ),
    Mutation("an interrupted cycle's last word stays", 12, "deliver", "or row[11] == 'closing' then", "then"),
    Mutation("a relay is done with what it was not given", 12, "deliver", "if done == place then", "if done ~= '' then"),
    Mutation("a relay's place is the newest output", 12, "prelude", "call('HSETNX', undelivered,", "call('HSET', undelivered,"),
    Mutation("a relay's place stays behind", 12, "deliver", "if last ~= place then call('HSET'", "if false then call('HSET'"),
    Mutation(
        "who has lost its lease hands over", 12, "deliver", "~= token then return { 'lost', '' } end", "== '' then return end"
    ),
    Mutation("two processes of a relay hand over", 12, "relay", "if holder and holder ~= token then", "if false then"),
    Mutation("a forgotten relay stays registered", 12, "forget_relay", "call('HDEL', RELAYS, name)", "call('EXISTS', RELAYS)"),
    Mutation("a room with work is forgotten", 9, "sweep", "if used or not fine then", "if false then"),
    Mutation("an idle room's state stays", 10, "sweep", "call('UNLINK', room_key(room) .. ':state')", ""),
    Mutation(
        "a room with outputs for a relay is forgotten",
        12,
        "sweep",
        "undelivered_key(relay), room) == 1",
        "undelivered_key(relay), room) == 2",
    ),
    Mutation("aborted cycles are remembered for ever", 10, "prelude", "  call('UNLINK', aborted_key(room))\n", ""),
)
