"""A pytest plugin for those who ask for it: ``pytest_plugins = ["greenroom.testing.plugin"]`` in a ``conftest.py``.

It is no entry point: a pytest run of somebody who merely has greenroom installed neither loads it nor pays for it.
"""

from __future__ import annotations

import pytest

from .server import shared_url


@pytest.fixture(scope="session")
def greenroom_redis() -> str:
    """The URL of a redis-server for the tests of this process: the one on which ``running(…)`` runs agents, unless it is given
    another. Started for the first test that wants it; under pytest-xdist each process has its own.
    """
    return shared_url()
