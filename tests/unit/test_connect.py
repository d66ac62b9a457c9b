"""URLs: what is taken for one, and how it may be shown."""

from __future__ import annotations

import pytest

from greenroom.protocol.connect import connect, without_password
from greenroom.protocol.errors import InvalidRequest


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://me:hunter2@host/1?ssl_cert_reqs=none", "rediss://me:***@host/1?ssl_cert_reqs=none"),
        ("redis://me@host:6379", "redis://me@host:6379"),
        ("redis://me:hunter2@[::1]:6379/0", "redis://me:***@[::1]:6379/0"),
        ("redis://me:hunt%40er2@host", "redis://me:***@host"),
        ("redis://me:hunt@er2@host", "redis://me:***@host"),
        ("unix://me:hunter2@/run/redis.sock?db=0", "unix://me:***@/run/redis.sock?db=0"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("url", ["redis://me:hunter2@[host", "redis://[hunter2"])
def test_a_url_that_cannot_be_read_is_not_shown_at_all(url: str) -> None:
    assert "hunter2" not in without_password(url)


@pytest.mark.parametrize("url", ["", "127.0.0.1:6379", "http://me:hunter2@host", "redis://me:hunter2@host:port"])
def test_what_is_no_redis_url_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(InvalidRequest, match="not a Redis URL") as refused:
        connect(url)
    assert "hunter2" not in str(refused.value)
