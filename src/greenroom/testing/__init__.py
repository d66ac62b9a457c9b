"""Tests of one's own agent: on a real Redis, in the process of the test. ``docs/testing.md`` shows how.

Nothing here needs pytest; fixtures are in ``greenroom.testing.plugin``.
"""

from .running import running
from .server import embedded_redis
from .stage import AsyncStage, Stage

__all__ = ["AsyncStage", "Stage", "embedded_redis", "running"]
