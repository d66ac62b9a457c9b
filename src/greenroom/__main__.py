"""``python -m greenroom`` is the command ``greenroom``."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The entry point of the command ``greenroom``. Probes go a way of their own: they are started every few seconds."""
    if sys.argv[1:2] == ["check"]:
        from .commands.check import run

        sys.exit(run(sys.argv[2:]))
    from .cli import main as cli

    cli()


if __name__ == "__main__":
    main()
