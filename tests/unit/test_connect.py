"""URLs: what is taken for one, and how it may be shown."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import SSLConnection
from redis.exceptions import AskError, ClusterDownError, MovedError, NoPermissionError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisPyConnectionError

from greenroom.protocol.cluster import ClusterPool, is_elsewhere
from greenroom.protocol.connect import connect, is_full, is_lost, translate, without_password
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
        ("cluster://me:hunter2@a:6379,b,[::1]:3", "cluster://me:***@a:6379,b,[::1]:3"),
        ("redis://host/0?password=hunter2&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host/0?password=hun#ter2", "redis://host/0?password=***"),
        ("rediss://host/0?ssl_password=hunter2", "rediss://host/0?ssl_password=***"),
        ("redis://me:hun/ter2@host/0", "redis://me:***@host/0"),
        ("redis://me:hun?ter2@host/0", "redis://me:***@host/0"),
        ("redis://:hun#t:er2@host/0", "redis://:***@host/0"),
        ("redis://me@corp.example:hunter2@host/0", "redis://me@corp.example:***@host/0"),
        ("redis://me@corp.example:hun@ter2@host/0", "redis://me@corp.example:***@host/0"),
        ("redis://me@[::1]:6379/0?db=1", "redis://me@[::1]:6379/0?db=1"),
        ("redis://host/0?PASSWORD=hunter2", "redis://host/0?PASSWORD=***"),
        ("redis://host/0?pass%77ord=hunter2", "redis://host/0?pass%77ord=***"),
        ("redis://host/0?password=hun&ter2&db=1", "redis://host/0?password=***&***&db=1"),
        ("me:hunter2@host:6379", "me:***@host:6379"),
        ("redis:me:hunter2@host", "redis:***@host"),
        ("rediss://host/0?ssl_password=hunter2&ssl_keyfile=k", "rediss://host/0?ssl_password=***&ssl_keyfile=k"),
        ("sentinels://me:hunter2@a,b/rooms?ssl_password=hunter2", "sentinels://me:***@a,b/rooms?ssl_password=***"),
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
        "sentinel://me:hunter2@a/rooms?ssl_ca_certs=ca.crt",
        "sentinels://me:hunter2@a/rooms?db=1",
        "sentinels://me:hunter2@a/rooms?password=hunter2",
        "sentinels://me:hunter2@a/rooms?ssl_bogus=1",
        "redis://me:hunter2@a?bogus=1",
        "redis://me:hunter2@a?ssl_ca_certs=ca.crt",
        "rediss://me:hunter2@a?bogus=1",
        "rediss://me:hunter2@a?ssl_cert_reqs=sometimes",
        "rediss://me:hunter2@a?ssl_ca_certs=/no/such/file",
        "rediss://me:hunter2@a?ssl_certfile=/no/such/file&ssl_keyfile=/no/such/file",
        "cluster://",
        "cluster://me:hunter2@",
        "cluster://me:hunter2@a,,b",
        "cluster://me:hunter2@a:port",
        "cluster://me:hunter2@a/0",
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
    for url in ("http://host", "localhost:6379"):
        with pytest.raises(InvalidRequest, match=r"\(want one that begins with redis://, .*, sentinel://, .*clusters://\)$"):
            connect(url)


def test_a_sentinel_url_names_sentinels_access_to_redis_and_the_primary() -> None:
    pool = connect("sentinel://me:hunt%40er2@a:1,b,[::1]:3/rooms/4").connection_pool
    assert isinstance(pool, PrimaryPool)
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("a", 1), ("b", 26379), ("::1", 3)]
    assert [each.get("password") for each in asked] == [None, None, None]
    said = pool.connection_kwargs
    assert (pool.service_name, said["username"], said["password"], said["db"]) == ("rooms", "me", "hunt@er2", 4)


def test_a_cluster_url_names_nodes_and_access_to_all_of_them() -> None:
    pool = connect("cluster://me:hunt%40er2@a:1,b,[::1]:3", "greenroom:{support}").connection_pool
    assert isinstance(pool, ClusterPool)
    nodes = pool.sentinel_manager
    assert (nodes._seeds, nodes._slot) == ([("a", 1), ("b", 6379), ("::1", 3)], 8959)  # as CLUSTER KEYSLOT answers
    for said in (nodes._options, pool.connection_kwargs):
        assert (said["username"], said["password"]) == ("me", "hunt@er2")
    assert nodes._options["socket_timeout"] is not None
    assert pool.connection_kwargs["socket_timeout"] is None


@pytest.mark.parametrize(
    "error",
    [
        MovedError("3999 127.0.0.1:6381"),
        AskError("3999 127.0.0.1:6381"),
        ResponseError("MOVED 3999 127.0.0.1:6381"),
        ResponseError("ASK 3999 127.0.0.1:6381"),
    ],
    ids=repr,
)
def test_a_node_that_names_another_one_has_not_the_agent(error: ResponseError) -> None:
    assert is_elsewhere(error)
    assert not is_lost(error)
    refused = translate(error)
    assert isinstance(refused, RedisRefused)
    assert "use a cluster:// URL" in str(refused)


@pytest.mark.parametrize(
    "error",
    [ClusterDownError("The cluster is down"), TryAgainError("later"), ResponseError("CLUSTERDOWN The cluster is down")],
    ids=repr,
)
def test_a_cluster_that_cannot_serve_just_now_is_taken_for_lost(error: ResponseError) -> None:
    assert is_elsewhere(error)
    assert is_lost(error)
    assert isinstance(translate(error), RedisUnavailable)


@pytest.mark.parametrize(
    "text",
    [
        "NOREPLICAS Not enough good replicas to write.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "Error running script (call to f_0): @user_script:1: -READONLY You can't write against a read only replica.",
        "WAIT cannot be used with replica instances. Please also note that …",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    ],
)
def test_a_server_that_does_not_write_just_now_is_taken_for_lost(text: str) -> None:
    assert is_lost(ResponseError(text))
    assert isinstance(translate(ResponseError(text)), RedisUnavailable)


def test_a_sentinels_url_speaks_tls_to_sentinels_and_redis() -> None:
    pool = connect("sentinels://me:hunter2@a,b/rooms?ssl_check_hostname=false").connection_pool
    assert isinstance(pool, PrimaryPool)
    asked = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    assert all(issubclass(each.connection_class, SSLConnection) for each in [pool, *asked])
    assert [each.connection_kwargs["ssl_check_hostname"] for each in [pool, *asked]] == [False] * 3


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (NoPermissionError("this user has no permissions to run the 'evalsha' command"), RedisRefused, "refuses access"),
        (ResponseError("Error running script: The user executing the script can't run this command"), RedisRefused, "access"),
        (ResponseError("ACL failure in script: User x has no permissions to run the 'hset' command"), RedisRefused, "access"),
        (
            RedisPyConnectionError(
                "Error 1 connecting to a:1. [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
                "self-signed certificate in certificate chain (_ssl.c:1006)."
            ),
            RedisRefused,
            "certificate is not accepted: self-signed certificate in certificate chain. Check",
        ),
        (RedisPyConnectionError("Error while reading from a:1 : (104, 'Connection reset by peer')"), RedisUnavailable, "TLS"),
        (RedisPyConnectionError("Connection closed by server."), RedisUnavailable, "rediss://"),
        (TimeoutError("no answer within 5 s"), RedisUnavailable, "no answer within 5 s. Check"),
    ],
)
def test_an_error_says_who_must_do_what(error: Exception, kind: type[Exception], words: str) -> None:
    said = translate(error)
    assert isinstance(said, kind)
    assert words in str(said)
    assert "\n" not in str(said)


@pytest.mark.parametrize(
    "text",
    [
        "command not allowed when used memory > 'maxmemory'. script: f00, on @user_script:74",
        "ERR Error running script (call to f_00): @user_script:9: @user_script: 9: -OOM command not allowed when used memory >",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "ERR Error running script (call to f_00): @user_script:9: @user_script: 9: -MISCONF Redis is configured to save",
    ],
)
def test_a_server_that_is_full_refuses_for_now(text: str) -> None:
    assert is_full(ResponseError(text))
    assert not is_lost(ResponseError(text))
    assert "greenroom doctor" in str(translate(ResponseError(text)))
    assert not is_full(ResponseError("ERR unknown command"))


def test_a_key_of_another_type_says_how_it_is_found() -> None:
    for code in ("WRONGTYPE ", ""):  # redis-py takes it away, or does not
        said = str(translate(ResponseError(f"{code}Operation against a key holding the wrong kind of value script: f00")))
        assert "greenroom keys finds it" in said


@pytest.mark.parametrize("text", ["WRONGTYPE Operation against a key holding the wrong kind of value", "ERR unknown command"])
def test_a_refusal_is_not_taken_for_a_loss(text: str) -> None:
    assert not is_lost(ResponseError(text))
    assert isinstance(translate(ResponseError(text)), RedisRefused)
