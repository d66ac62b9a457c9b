"""What a signal must do, and what its receipt must say, by the account of ``model``."""

from __future__ import annotations

from .model import Account, Expected, Receipt, Room


def control(account: Account, mode: str, rooms: tuple[str, ...], *, cid: str, only: str = "", raw: str = "") -> Expected:
    """Invariant 8: a signal is applied once by its cid, and a hand-written one once by its place in the stream."""
    if raw and passed(account, raw):
        return ("passed", ())
    target = " ".join((mode, only, *rooms))
    if cid in account.signals:
        known, receipts = account.signals[cid]
        return ("ok" if known == target else "conflict", tuple(sorted(receipts)))
    if rooms:
        receipts = [(name, *_APPLY[mode](account, account.rooms[name], mode, only)) for name in rooms]
    else:
        receipts = _everywhere(account, mode, only)
    account.signals[cid] = (target, receipts)
    return ("ok", tuple(sorted(receipts)))


def passed(account: Account, raw: str) -> bool:
    """Whether this hand-written entry was handled before; if not, it is now."""
    ms, seq = raw.split("-")
    place = (int(ms), int(seq))
    if place <= account.cursor:
        return True
    account.cursor = place
    return False


def _abort(room: Room, mode: str) -> str:
    """The first abort of a cycle wins; a shield defers it."""
    cycle = room.live
    assert cycle is not None
    if cycle.abort or cycle.deferred:
        return "already"
    if cycle.shield:
        cycle.deferred = mode
        return "deferred"
    cycle.abort = mode
    return "applied"


def _processing(room: Room) -> str:
    return room.queue[0] if room.begun else ""


def _interrupt(account: Account, room: Room, mode: str, only: str) -> tuple[str, str]:
    message = _processing(room)
    if "stop" in (account.mode, room.mode):
        return "held", message
    if not message or only not in ("", message):
        return "idle", ""
    if room.live is not None:
        return _abort(room, mode), message
    room.consume(message, room.settled, 0)
    return "applied", message


def _hold(room: Room, mode: str) -> str:
    if mode == "stop" and room.live is not None:
        _abort(room, mode)
        if room.live.deferred:
            return "deferred"
    return "applied"


def _stands(current: str, mode: str) -> bool:
    return current in ("stop", mode)


def _halt(account: Account, room: Room, mode: str, only: str) -> tuple[str, str]:
    if _stands(room.mode, mode):
        return "already", _processing(room)
    room.mode = mode
    return _hold(room, mode), _processing(room)


def _play(account: Account, room: Room, mode: str, only: str) -> tuple[str, str]:
    outcome = "applied" if room.mode else "already"
    room.mode = ""
    return outcome, _processing(room)


_APPLY = {"interrupt": _interrupt, "stop": _halt, "pause": _halt, "play": _play}


def _everywhere(account: Account, mode: str, only: str) -> list[Receipt]:
    rooms = account.rooms.values()
    if mode == "interrupt":
        receipts = [("", "held" if account.mode == "stop" else "applied", "")]
        outcomes = [(room.name, *_interrupt(account, room, mode, only)) for room in rooms]
        return receipts + [row for row in outcomes if row[1] not in ("idle", "held")]
    if mode == "play":
        outcome, account.mode = "applied" if account.mode else "already", ""
        return [("", outcome, "")]
    if _stands(account.mode, mode):
        return [("", "already", "")]
    account.mode = mode
    live = [room for room in rooms if room.live is not None]
    outcomes = [(room.name, _hold(room, mode), _processing(room)) for room in live]
    return [("", "applied", ""), *(outcomes if mode == "stop" else [])]
