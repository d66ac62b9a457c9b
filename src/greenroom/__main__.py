"""``python -m greenroom`` is the command ``greenroom``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from .ending import end_on_ctrl_c


def _open_standard_streams() -> None:
    """A stream that was closed before the start is an empty one: else the next file or socket would get its number."""
    for name, number, flags in (("stdin", 0, os.O_RDONLY), ("stdout", 1, os.O_WRONLY), ("stderr", 2, os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = os.fdopen(number, "w" if flags else "r")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def main() -> NoReturn:
    """The entry point of the command ``greenroom``. Probes go a way of their own: they are started every few seconds."""
    end_on_ctrl_c()
    _open_standard_streams()
    if sys.argv[1:2] == ["check"]:
        from .commands.check import run

        sys.exit(run(sys.argv[2:]))
    from .cli import main as cli

    cli()


if __name__ == "__main__":
    main()
