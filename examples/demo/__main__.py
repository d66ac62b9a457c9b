"""Run the demo. Exit code 0 if every step went as it must and the account holds, else 1."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from greenroom import GreenroomError

from .process import DemoFailed
from .stage import Stage
from .story import tell


async def run(stage: Stage) -> bool:
    task = asyncio.current_task()
    assert task is not None

    def end() -> None:
        """The first Ctrl-C ends the story; one more does not wait for the supervisor's last answers."""
        if task.cancelling():
            stage.supervisor.kill_now()
        else:
            task.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, end)
    return await tell(stage)


def main() -> int:
    argparse.ArgumentParser(prog="demo", description="Greenroom's main job on real input, and an account of it.").parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # customers write in any language, terminals do not
    folder = Path(tempfile.mkdtemp(prefix="greenroom-demo-"))
    logging.basicConfig(filename=folder / "client.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stage = Stage(folder)
    holds = False
    try:
        holds = asyncio.run(run(stage))
    except (DemoFailed, GreenroomError) as error:
        print(f"\nThe demo failed: {error}", flush=True)
    except asyncio.CancelledError:
        print("\nThe demo was ended from outside.", flush=True)
    finally:
        stage.end_children()
        if holds:
            shutil.rmtree(folder)
        else:
            print(f"The logs, the record and the data of Redis are in {folder}", flush=True)
    return 0 if holds else 1


sys.exit(main())
