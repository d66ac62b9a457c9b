"""From the bytes of a terminal to the names of keys."""

from __future__ import annotations

import codecs
import re

_NAMES = {
    "[A": "up",
    "[B": "down",
    "OA": "up",
    "OB": "down",
    "[5~": "page-up",
    "[6~": "page-down",
    "[H": "home",
    "[1~": "home",
    "OH": "home",
    "[F": "end",
    "[4~": "end",
    "OF": "end",
}
_CHARACTERS = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.)", re.DOTALL)
_BEGUN = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?", re.DOTALL)
MAX_SEQUENCE = 32  # what is longer, and has no end, is none


class Keyboard:
    """Decodes keys. A sequence may arrive in parts; so an escape is one only when nothing has followed it for a while."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def waits(self) -> bool:
        """Whether a sequence has begun: call ``flush`` if it does not go on."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete with these bytes. Sequences of keys that have no name here are passed over."""
        text, self._rest, keys = self._rest + self._decoder.decode(data), "", []
        while text:
            if text[0] != "\x1b":
                keys.append(_CHARACTERS.get(text[0], text[0]))
                text = text[1:]
            elif found := _SEQUENCE.match(text):
                keys += [_NAMES[found[1]]] if found[1] in _NAMES else []
                text = text[found.end() :]
            elif len(text) <= MAX_SEQUENCE and _BEGUN.fullmatch(text):
                self._rest, text = text, ""
            else:
                keys.append("escape")
                text = text[1:]
        return keys

    def flush(self) -> list[str]:
        """What has begun as a sequence, and was none."""
        rest, self._rest = self._rest, ""
        return ["escape", *(_CHARACTERS.get(character, character) for character in rest[1:])] if rest else []
