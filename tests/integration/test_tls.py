"""Redis over TLS, with certificates on both sides: workers, clients, commands and Sentinels."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest

from greenroom import ActorSystem, AsyncClient, Client, InvalidRequest, Kind, Outcome, RedisError, RedisRefused
from greenroom.cli import execute
from integration.agents import Director, eventually, wait_output
from integration.clustered import clustered
from integration.command import Process
from integration.replicated import NAME, Node
from integration.servers import server_executables
from pages import blocks

from helpers import unique

APP = """
from greenroom import Agent

class Echo(Agent):
    async def respond(self, message, cycle):
        return message.body
"""


def tls_server() -> Path:
    """A redis-server that speaks TLS. That of the ``embedded`` extra does not."""
    for executable in server_executables().values():
        if b"tls-ca-cert-file" in executable.read_bytes():
            return executable
    pytest.skip("no redis-server here was built with TLS")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)  # noqa: S607


def sign(folder: Path, name: str, ca: str, names: str) -> None:
    """A key and a certificate, signed by that CA."""
    request, extension = folder / f"{name}.csr", folder / f"{name}.ext"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / f"{name}.key")
    openssl("req", *key, "-out", request, "-subj", f"/CN={name}")
    # Python 3.13 wants the first two of them.
    extension.write_text(f"subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nsubjectAltName={names}\n")
    signed = ("-CA", folder / f"{ca}.crt", "-CAkey", folder / f"{ca}.key", "-CAcreateserial", "-days", "2")
    openssl("x509", "-req", "-in", request, *signed, "-extfile", extension, "-out", folder / f"{name}.crt")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA, a server's and a client's certificate, and a CA and a client that have nothing to do with them."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("ca", "other-ca"):
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / f"{ca}.key")
        signs = ("-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-x509", *key, *signs, "-out", folder / f"{ca}.crt", "-days", "2", "-subj", f"/CN={ca}")
    sign(folder, "server", "ca", "DNS:localhost,IP:127.0.0.1")
    sign(folder, "client", "ca", "DNS:client")
    sign(folder, "stranger", "other-ca", "DNS:stranger")
    return folder


def options(folder: Path, ca: str = "ca", client: str | None = "client", **more: str) -> str:
    """The query of a URL."""
    said = {"ssl_ca_certs": str(folder / f"{ca}.crt"), **more}
    if client is not None:
        said |= {"ssl_certfile": str(folder / f"{client}.crt"), "ssl_keyfile": str(folder / f"{client}.key")}
    return urlencode(said)


@pytest.fixture(scope="module")
def server(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A Redis that speaks TLS only, and wants certificates of its clients."""
    node = Node(tmp_path_factory.mktemp("tls"), "appendonly yes", "save ''", tls=certificates, executable=tls_server())
    try:
        node.start()
        yield node
    finally:
        node.kill()


@pytest.fixture
def url(server: Node, certificates: Path) -> str:
    return f"rediss://127.0.0.1:{server.port}/0?{options(certificates)}"


def test_a_worker_and_both_clients_do_everything_over_tls(url: str, agent: str, director: Director) -> None:
    with ActorSystem(director.agent(), agent=agent, redis=url), Client(agent, redis=url) as client:
        client.send("42", "wait")
        run = director.run("42")
        run.send("chunk")
        wait_output(client, "42", lambda output: output.body == "chunk")
        assert [receipt.outcome for receipt in client.stop("42")] == [Outcome.APPLIED]
        run.wait_cancelled()
        client.play("42")
        director.run("42").finish("done")
        wait_output(client, "42", lambda output: output.kind is Kind.REPLY)

        async def ask() -> object:
            async with AsyncClient(agent, redis=url) as asking:
                return await asking.ask("43", "hello")

        assert asyncio.run(ask()) == "hello"


def test_the_url_that_the_page_on_operations_shows_is_one(
    server: Node, certificates: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [shown] = [text.text.strip() for text in blocks("docs/operations.md", "text") if text.first.startswith("rediss://")]
    monkeypatch.chdir(certificates)
    with Client(agent, redis=shown.replace("user:password@redis.example:6379", f"127.0.0.1:{server.port}")) as client:
        client.send("42", "hello")
        assert client.status("42").waiting == 1


def test_a_worker_resumes_when_its_tls_connections_are_killed(url: str, agent: str, server: Node, director: Director) -> None:
    """row 40"""
    with ActorSystem(director.agent(), agent=agent, redis=url) as system, Client(agent, redis=url) as client:
        assert client.ask("42", "hello") == "hello"
        server.redis.client_kill_filter(_type="normal", skipme=True)
        eventually(lambda: system._store.pipeline.reconnects, "the worker is back")
        assert client.ask("42", "again") == "again"


def test_the_process_and_the_commands_take_a_tls_url_from_the_environment(
    url: str, agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREENROOM_REDIS_URL", url)
    monkeypatch.setenv("GREENROOM_AGENT", agent)
    (tmp_path / "app.py").write_text(APP)
    process = Process(tmp_path, "app:Echo", "--processes", "1", "--name", unique("worker"))
    try:
        process.wait_line()
        assert execute(["ask", "42", "hello"]) == 0
        assert capsys.readouterr().out == "hello\n"
        assert execute(["status", "42"]) == 0
        assert execute(["doctor", agent]) == 0
        assert "TLS, certificate checked" in capsys.readouterr().out
    finally:
        process.stop()


def refused(url: str, capsys: pytest.CaptureFixture[str], code: int = 3) -> str:
    """The one line with which a command gives up."""
    assert execute(["status", "--agent", "support", "--redis", url]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize("ca", ["other-ca", None], ids=["another CA", "the system's CAs"])
def test_a_server_that_the_named_ca_did_not_sign_is_refused_at_once_with_one_clear_line(
    ca: str | None, server: Node, certificates: Path, agent: str, director: Director, capsys: pytest.CaptureFixture[str]
) -> None:
    query = options(certificates, ca) if ca else ""
    url = f"rediss://127.0.0.1:{server.port}/0?{query}"
    assert "certificate is not accepted" in refused(url, capsys)
    with pytest.raises(RedisRefused, match="certificate is not accepted"):
        ActorSystem(director.agent(), agent=agent, redis=url).start()
    with Client(agent, redis=url, timeout=3600) as client, pytest.raises(RedisRefused, match="ssl_ca_certs"):
        client.send("42", "hello")


def test_a_server_whose_certificate_names_another_host_is_refused(
    certificates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = shutil.copytree(certificates, tmp_path / "certificates")
    for suffix in ("crt", "key"):
        shutil.copy(theirs / f"client.{suffix}", theirs / f"server.{suffix}")
    node = Node(tmp_path, tls=theirs, executable=tls_server())
    try:
        node.start()
        assert "not valid for '127.0.0.1'" in refused(f"rediss://127.0.0.1:{node.port}/0?{options(certificates)}", capsys)
    finally:
        node.kill()


@pytest.mark.parametrize("client", ["stranger", None], ids=["signed by another CA", "none"])
def test_a_client_without_the_certificate_that_redis_wants_is_told_of_it(
    client: str | None, server: Node, certificates: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.commands.clients.PATIENCE_S", 0.2)
    url = f"rediss://127.0.0.1:{server.port}/0?{options(certificates, client=client)}"
    assert "client certificate" in refused(url, capsys)


def test_a_client_that_speaks_no_tls_is_told_of_it(
    server: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.commands.clients.PATIENCE_S", 0.2)
    assert "rediss://" in refused(f"redis://127.0.0.1:{server.port}/0", capsys)


def test_a_certificate_that_cannot_be_used_is_wrong_usage(
    server: Node, certificates: Path, agent: str, director: Director, capsys: pytest.CaptureFixture[str]
) -> None:
    """row 45"""
    good = f"rediss://127.0.0.1:{server.port}/0?{options(certificates)}"
    for url in (
        good.replace("ca.crt", "none.crt"),
        good.replace("ca.crt", "ca.key"),
        good.replace("client.key", "server.key"),
        f"{good}&ssl_bogus=1",
    ):
        assert "not a Redis URL" in refused(url, capsys, code=2)
        with pytest.raises(InvalidRequest):
            ActorSystem(director.agent(), agent=agent, redis=url)


def test_a_certificate_that_is_not_checked_is_found_out(
    server: Node, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for unchecked in ({"ssl_cert_reqs": "none", "ssl_check_hostname": "false"}, {"ssl_check_hostname": "false"}):
        url = f"rediss://127.0.0.1:{server.port}/0?{options(certificates, **unchecked)}"
        assert execute(["doctor", "--redis", url]) == 0
        assert "certificate is not checked" in capsys.readouterr().out


def test_sentinels_over_tls_name_a_primary_that_speaks_tls(
    certificates: Path, tmp_path: Path, agent: str, director: Director
) -> None:
    executable = tls_server()
    with ExitStack() as stack:
        primary = Node(tmp_path, "save ''", "appendonly yes", tls=certificates, executable=executable)
        monitor = f"sentinel monitor {NAME} 127.0.0.1 {primary.port} 1"
        sentinel = Node(tmp_path, monitor, sentinel=True, tls=certificates, executable=executable)
        for node in (primary, sentinel):
            stack.callback(node.kill)
            node.start()
        hosts = f"127.0.0.1:{sentinel.port}"
        url = f"sentinels://{hosts}/{NAME}?{options(certificates)}"
        with ActorSystem(director.agent(), agent=agent, redis=url), Client(agent, redis=url) as client:
            assert client.ask("42", "hello") == "hello"
        wrong = f"sentinels://{hosts}/{NAME}?{options(certificates, 'other-ca')}"
        for bad in (wrong, f"sentinel://{hosts}/{NAME}"):
            with pytest.raises(RedisError):
                ActorSystem(director.agent(), agent=agent, redis=bad).start()


def test_a_cluster_over_tls_is_followed(certificates: Path, tmp_path: Path, director: Director) -> None:
    with clustered(tmp_path, tls=certificates, executable=tls_server()) as cluster:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.primaries)
        url = f"clusters://{hosts}?{options(certificates)}"
        for node in cluster.primaries:
            agent = cluster.agent_on(node)
            with ActorSystem(director.agent(), agent=agent, redis=url), Client(agent, redis=url) as client:
                assert client.ask("42", "hello") == "hello"
        with pytest.raises(RedisError):
            ActorSystem(director.agent(), agent=agent, redis=f"clusters://{hosts}?{options(certificates, 'other-ca')}").start()
