"""The wheel as users get it: built from the source distribution, and used with the sources out of reach."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "actors", "supervisors")
FACE = ("commands", "testing", "top")
NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")

PROGRAM = '''
"""Type-checks as a user's own program: every kind of handler, and both clients."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

from greenroom import ActorSystem, Agent, AsyncClient, Client, Cycle, Event, Message, Output, Receipt, ThreadCycle
from greenroom.testing import running


class Coroutine(Agent):
    max_attempts = 5

    async def respond(self, message: Message, cycle: Cycle) -> str:
        async with cycle.shield():
            cycle.state["orders"] = [message.body["order"]]
        return f"{message.room} {message.attempt}"


class AsyncGenerator(Agent):
    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        yield message.room


class Function(Agent):
    def respond(self, message: Message, cycle: ThreadCycle) -> dict[str, Any]:
        return {"room": message.room}


class Generator(Agent):
    def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[str]:
        with cycle.shield():
            cycle.state["room"] = message.room
        yield message.room


def sync(url: str) -> None:
    with ActorSystem(Coroutine, agent="support", redis=url), Client("support", redis=url) as client:
        assert_type(client.send("42", {"order": 7}), int)
        assert_type(client.stop("42", "43"), list[Receipt])
        assert_type(client.room("42").play(), Receipt)


def tests() -> None:
    with running(Coroutine, hold_retries=True, max_rooms=7) as stage:
        assert_type(stage.send("42", {"order": 7}), int)
        assert_type(stage.wait_event("message.dead", "42"), Event)
        assert_type(stage.wait_output("42", seq=2), Output)
        assert_type([output for output in stage.ask("42", {}, stream=True)], list[Output])


async def asynchronous_tests() -> None:
    async with running(Coroutine) as stage:
        assert_type(await stage.send("42", {"order": 7}), int)
        assert_type(await stage.wait_begun("42"), Message)
        assert_type([output async for output in stage.ask("42", {}, stream=True)], list[Output])


async def asynchronous(url: str) -> None:
    async with AsyncClient("support", redis=url) as client:
        assert_type(await client.send("42", {"order": 7}), int)
        assert_type(await client.interrupt("42"), list[Receipt])
        assert_type(await client.room("42").stop(), Receipt)
'''


def run(*words: str | Path, cwd: Path) -> str:
    """What the program prints; a failure of the test when it fails."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def expected_files() -> set[str]:
    """What the sources have to put into a wheel."""
    modules = {f"greenroom/{path.relative_to(ROOT)}" for name in PACKAGES for path in (ROOT / name).glob("*.py")}
    scripts = {f"greenroom/protocol/lua/{path.name}" for path in (ROOT / "protocol" / "lua").glob("*.lua")}
    source = ROOT / "src" / "greenroom"
    own = [*source.glob("*.py"), *(path for name in FACE for path in (source / name).glob("*.py"))]
    face = {f"greenroom/{path.relative_to(source)}" for path in own}
    return modules | scripts | face | {"greenroom/py.typed"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source distribution, and the wheel that was built from it and not from the checkout."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=NOT_SOURCES)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "checkout", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment where the wheel is installed, with the dependencies of this one and none of its links."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    found = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", found, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    [packages] = folder.glob("lib/python*/site-packages")
    # A .pth file of a folder that is itself added by one is not read: the editable greenroom stays out.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return found


def test_the_wheel_has_the_three_packages_the_scripts_and_the_typing_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= expected_files()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"greenroom"}


def test_the_wheel_has_the_licence_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [licence] = [name for name in archive.namelist() if name.endswith("/LICENSE")]
        [commands] = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert "greenroom = greenroom.__main__:main" in archive.read(commands).decode()


def test_the_source_distribution_has_the_sources_as_files(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {member.name.partition("/src/")[2] for member in archive if member.isfile()}
    assert files >= expected_files()


def test_the_installed_wheel_is_imported_with_its_scripts(python: Path, tmp_path: Path) -> None:
    program = "import greenroom.protocol.store, greenroom.actors, greenroom.supervisors, greenroom.protocol.scripts as s; "
    said = run(python, "-I", "-c", program + "print(greenroom.__file__, *s.scripts())", cwd=tmp_path).split()
    assert Path(said[0]).is_relative_to(python.parents[1])
    assert {"enqueue", "claim", "commit", "control"} <= set(said[1:])


def test_the_installed_command_runs(python: Path, tmp_path: Path) -> None:
    assert "Usage" in run(python.with_name("greenroom"), "--help", cwd=tmp_path)


def test_a_users_program_type_checks_strictly_against_the_installed_wheel(python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--python-executable", python)
    run(sys.executable, "-P", "-m", "mypy", *options, "program.py", cwd=tmp_path)
