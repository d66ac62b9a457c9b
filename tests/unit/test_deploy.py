"""The files in deploy/: that they can be read, and that their numbers are those of the code."""

from __future__ import annotations

import configparser
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from greenroom import Agent
from greenroom.actors.loop import JOIN_S
from greenroom.supervisors.process import EXIT_S, ExitCode
from greenroom.supervisors.system import DEFAULT_GRACE, LEAVE_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

# From SIGTERM to the end, whatever the agent's code does: the grace, the aborts and their hooks, Redis, two threads, the exit.
ABORTED = Agent.abort_timeout + Agent.hook_timeout + timedelta(seconds=LEAVE_S)
LONGEST = DEFAULT_GRACE + ABORTED + timedelta(seconds=LEAVE_S + 2 * JOIN_S + EXIT_S)


def text(name: str) -> str:
    return (DEPLOY / name).read_text()


@pytest.fixture
def unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    unit.read_string(text("greenroom@.service"))
    return unit


def test_the_unit_is_notified_and_restarted_but_for_what_a_restart_makes_no_better(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert (service["Type"], service["NotifyAccess"], service["Restart"]) == ("notify", "main", "on-failure")
    prevented = {ExitCode(int(code)) for code in service["RestartPreventExitStatus"].split()}
    assert prevented == {ExitCode.USAGE, ExitCode.SUPERSEDED, ExitCode.EMPTIED}
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_stop_is_given_longer_than_it_can_take(unit: configparser.ConfigParser) -> None:
    assert f"{LONGEST.total_seconds():.0f} s" == "48 s"  # as the comments say
    longest_s = LONGEST.total_seconds()
    assert int(unit["Service"]["TimeoutStopSec"]) > longest_s
    patterns = {"kubernetes.yaml": r"terminationGracePeriodSeconds: (\d+)", "Dockerfile": r"--stop-timeout (\d+) -v"}
    for name, pattern in patterns.items():
        [given] = re.findall(pattern, text(name))
        assert int(given) > longest_s, name
    assert all("48 s" in text(name) for name in ("greenroom@.service", "kubernetes.yaml"))


def test_the_watchdog_is_not_faster_than_the_end_of_a_process(unit: configparser.ConfigParser) -> None:
    """The last sign of life is up to half a period before the control loop ends, and threads and exit come after that."""
    assert int(unit["Service"]["WatchdogSec"]) / 2 > 2 * JOIN_S + EXIT_S


def test_the_image_has_one_user_who_is_not_root_and_gets_the_signals_itself() -> None:
    lines = [line for line in text("Dockerfile").splitlines() if line and not line.startswith("#")]
    last = lines[len(lines) - 1 - lines[::-1].index("FROM python:${PYTHON}-slim") :]
    assert "USER 10001:10001" in last
    assert "STOPSIGNAL SIGTERM" in last
    assert 'ENTRYPOINT ["greenroom"]' in last
    assert not [line for line in last if "pip install" in line or "apt" in line]


def test_the_image_is_built_from_all_that_the_wheel_needs() -> None:
    let_in = {line[1:] for line in text("Dockerfile.dockerignore").splitlines() if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    links = {path.name for path in (ROOT / "src" / "greenroom").iterdir() if path.is_symlink()}
    assert let_in == {"src", *links, "pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]}


def test_the_manifest_can_be_read_and_its_probes_ask_what_they_should() -> None:
    yaml: Any = pytest.importorskip("yaml")
    workers, budget = yaml.safe_load_all(text("kubernetes.yaml"))
    assert (workers["kind"], budget["kind"]) == ("StatefulSet", "PodDisruptionBudget")
    pod = workers["spec"]["template"]["spec"]
    [worker] = pod["containers"]
    assert worker["args"][:2] == ["run", "support_agent:Support"]
    asked = {name: worker[name]["exec"]["command"][2:] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert asked == {"startupProbe": ["--ready"], "readinessProbe": ["--ready"], "livenessProbe": ["--live"]}
    secrets = [each["name"] for each in worker["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    assert secrets == ["GREENROOM_REDIS_URL"]
    assert pod["securityContext"]["runAsUser"] == 10001
    labels = workers["spec"]["template"]["metadata"]["labels"]
    assert labels == workers["spec"]["selector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"]
