"""Runs the chaos for a while, prints the account, and ends with 0 only if it holds."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from . import recovery
from .account import Account
from .ledger import Ledger
from .run import Run
from .staged import Staged

SHOWN = 50  # violations; the rest is in the file


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Kills, suspends and cuts off workers and Redis under load, and accounts for every message.",
        epilog="Exit codes: 0 the account holds, 1 it does not (files are kept), 2 wrong usage.",
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (2)")
    parser.add_argument("--seed", type=int, help="of the dice; one is drawn and printed otherwise")
    parser.add_argument("--keep", action="store_true", help="keep the files also if the account holds")
    options = parser.parse_args()
    if not options.minutes > 0:
        parser.error(f"--minutes: want more than 0, got {options.minutes}")
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    return options


async def conduct(run: Run) -> Account:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await run.run()
    finally:
        run.end_children()


def show(account: Account, ledger: Ledger, staged: Staged) -> None:
    print("\nThe account")
    print("\n".join(account.lines()))
    print("\nRecovery after a worker was killed")
    print("\n".join(recovery.lines(ledger)))
    print(f"  {'fenced: effects of replaced cycles':<36}{ledger.events['refused fenced']} refused")
    print(f"  {staged.line()}")
    print("\nWhat was done")
    print("\n".join(f"  {what:<36}{count:7}" for what, count in sorted(ledger.done.items())))
    print("\nWhat was seen of it: events, and effects that workers saw refused")
    print("\n".join(f"  {what:<36}{count:7}" for what, count in sorted(ledger.events.items())))
    print()
    for finding in account.wrong[:SHOWN]:
        print(f"WRONG: {finding}")
    if len(account.wrong) > SHOWN:
        print(f"WRONG: … and {len(account.wrong) - SHOWN} more")


def main() -> int:
    options = parse()
    folder = Path(tempfile.mkdtemp(prefix="greenroom-chaos-"))
    print(f"seed {options.seed}, {options.minutes} minutes", flush=True)
    logging.basicConfig(filename=folder / "chaos.log", format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    run = Run(folder, options.seed, options.minutes * 60)
    try:
        account = asyncio.run(conduct(run))
    except asyncio.CancelledError:
        print(f"ended from outside; files are kept in {folder}")
        return 1
    except BaseException:
        print(f"the chaos itself failed; files are kept in {folder}")
        raise
    show(account, run.ledger, run.staged)
    if account.wrong:
        (folder / "violations.txt").write_text("".join(f"{finding}\n" for finding in account.wrong))
        print(
            f"It does not hold: {len(account.wrong)} violations. Seed {options.seed}; Redis' files and all logs are in {folder}"
        )
        return 1
    print("It holds: nothing lost, nothing twice, nothing late, all in order.")
    if options.keep:
        print(f"Files are in {folder}")
    else:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
