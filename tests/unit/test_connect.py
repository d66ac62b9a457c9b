"""URLs: what is taken for one, and how it may be shown."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from greenroom.protocol.connect import connect, is_lost, translate, without_password
from greenroom.protocol.errors import InvalidRequest, RedisRefused, RedisUnavailable
from greenroom.protocol.primary import PrimaryPool


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
        ("sentinel://me:hunter2@a:26379,b,[::1]:3/rooms/1", "sentinel://me:***@a:26379,b,[::1]:3/rooms/1"),
        ("sentinel://a,b/rooms", "sentinel://a,b/rooms"),
        ("redis://host/0?password=hunter2&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host/0?password=hun#ter2", "redis://host/0?password=***"),
        ("rediss://host/0?ssl_password=hunter2", "rediss://host/0?ssl_password=***"),
        ("redis://me:hun/ter2@host/0", "redis://me:***@host/0"),
        ("redis://me:hun?ter2@host/0", "redis://me:***@host/0"),
        ("redis://:hun#t:er2@host/0", "redis://:***@host/0"),
        ("me:hunter2@host:6379", "me:***@host:6379"),
        ("redis:me:hunter2@host", "redis:***@host"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("url", ["redis://me:hunter2@[host", "redis://[hunter2"])
def test_a_url_that_cannot_be_read_is_not_shown_at_all(url: str) -> None:
    assert "hunter2" not in without_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:6379",
        "http://me:hunter2@host",
        "redis://me:hunter2@host:port",
        "sentinel://",
        "sentinel://me:hunter2@a,b",
        "sentinel://me:hunter2@/rooms",
        "sentinel://me:hunter2@a,,b/rooms",
        "sentinel://me:hunter2@a:port/rooms",
        "sentinel://me:hunter2@a/rooms/first",
        "sentinel://me:hunter2@a/rooms/1/2",
        "sentinel://me:hunter2@a/rooms?db=1",
        "sentinel://me:hunter2/1@a/rooms",
        "me:hunter2@host:6379",
        "redis://:hunter2/3@host",
        "redis://:hunter2?3@host",
        "redis://:hunter2#3@host",
        "redis://me:hunter2℀@host",
        "redis://[hunter2]@host",
        "redis://me:hunter2'\"@host:port",
        "redis://me:hunter2@host?db=x",
    ],
)
def test_what_is_no_redis_url_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(InvalidRequest, match="not a Redis URL") as refused:
        connect(url)
    assert "hunter2" not in str(refused.value)


def test_what_is_wrong_with_a_url_is_said() -> None:
    with pytest.raises(InvalidRequest, match=r"redis://me:\*\*\*@host\?db=x \(.*'db'"):
        connect("redis://me:hunter2@host?db=x")
    with pytest.raises(InvalidRequest, match=r"redis://host:port \(Port could not be cast"):
        connect("redis://host:port")


def test_a_sentinel_url_names_sentinels_access_to_redis_and_the_primary() -> None:
    pool = connect("sentinel://me:hunt%40er2@a:1,b,[::1]:3/rooms/4").connection_pool
    assert isinstance(pool, PrimaryPool)
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("a", 1), ("b", 26379), ("::1", 3)]
    assert [each.get("password") for each in asked] == [None, None, None]
    said = pool.connection_kwargs
    assert (pool.service_name, said["username"], said["password"], said["db"]) == ("rooms", "me", "hunt@er2", 4)


@pytest.mark.parametrize(
    "text",
    [
        "NOREPLICAS Not enough good replicas to write.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "Error running script (call to f_0): @user_script:1: -READONLY You can't write against a read only replica.",
        "WAIT cannot be used with replica instances. Please also note that …",
    ],
)
def test_a_server_that_may_not_write_any_more_is_taken_for_lost(text: str) -> None:
    assert is_lost(ResponseError(text))
    assert isinstance(translate(ResponseError(text)), RedisUnavailable)


@pytest.mark.parametrize("text", ["WRONGTYPE Operation against a key holding the wrong kind of value", "ERR unknown command"])
def test_a_refusal_is_not_taken_for_a_loss(text: str) -> None:
    assert not is_lost(ResponseError(text))
    assert isinstance(translate(ResponseError(text)), RedisRefused)
