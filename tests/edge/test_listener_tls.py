"""TLS at the gateway's own listeners: certificates, rotation and clients that are refused."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from headgate.edge.tls_handshake import HandshakeFailure
from testing.certificates import Authority, CertificateFiles
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop, text_of

STREAMS = 200
TOKENS = 12
ROTATIONS = 3


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@asynccontextmanager
async def a_gateway(
    folder: Path, authority: Authority, *, client: CertificateFiles | None = None, **settings: object
) -> AsyncIterator[tuple[GatewayInLoop, FakeEngine]]:
    async with FakeEngine() as engine:
        config = a_config(engine.url, **settings)
        async with gateway_in_loop(config, folder, tls=authority.client_context(client)) as gateway:
            yield gateway, engine


def contents(file: str) -> str:
    return Path(file).read_text()


def replace(file: str | Path, text: str) -> None:
    Path(file).write_text(text)


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


def failures(gateway: GatewayInLoop, listener: int = 0) -> dict[HandshakeFailure, int]:
    return dict(gateway.gateway._parts.listeners[listener].connections.handshake_failures)


async def stream(gateway: GatewayInLoop, tls: ssl.SSLContext) -> str:
    async with gateway.post(chat(stream=True), ssl=tls) as answer:
        return text_of(await answer.read())


async def serial_number(gateway: GatewayInLoop, tls: ssl.SSLContext, listen: str) -> str:
    """Serial number of the certificate that a new connection gets."""
    host, _, port = listen.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    await writer.wait_closed()
    return found


async def test_both_listeners_serve_over_tls(tmp_path: Path, authority: Authority) -> None:
    files = authority.issue()._asdict()
    async with a_gateway(tmp_path, authority, listen_tls=files, admin_listen_tls=files) as (gateway, _):
        async with gateway.post(chat()) as answer:
            assert answer.status == 200
        status = await gateway.status()
        async with gateway.http.get(f"{gateway.admin_url}/metrics") as answer:
            page = await answer.text()

    assert gateway.url.startswith("https://")
    assert {name: each["problem"] for name, each in status["tls"].items()} == {"listen": None, "admin_listen": None}
    assert 'headgate_tls_handshake_failures_total{listener="listen",reason="plain_http"} 0.0' in page
    assert 'headgate_tls_certificate_reload_failed{listener="admin_listen"} 0.0' in page


@pytest.mark.parametrize(("path", "said"), [("/health", "alive\n"), ("/ready", "ready\n")])
async def test_probes_need_no_tls_and_no_client_certificate(
    path: str, said: str, tmp_path: Path, authority: Authority
) -> None:
    files = authority.issue()
    tls = {**files._asdict(), "client_ca": authority.file}
    async with a_gateway(tmp_path, authority, client=files, admin_listen_tls=tls) as (gateway, _):
        plain = gateway.admin_url.replace("https://", "http://")
        async with aiohttp.ClientSession() as http, http.get(plain + path) as answer:
            assert (answer.status, await answer.text()) == (200, said)


async def test_other_pages_need_tls(tmp_path: Path, authority: Authority) -> None:
    async with a_gateway(tmp_path, authority, admin_listen_tls=authority.issue()._asdict()) as (gateway, _):
        plain = gateway.admin_url.replace("https://", "http://")
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"{plain}/status")
        # The client repeats a request whose connection was closed.
        await eventually(lambda: failures(gateway, -1).keys() == {HandshakeFailure.PLAIN_HTTP})


async def test_rotation_breaks_no_open_stream_and_each_one_is_logged(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    tls = {"listen_tls": authority.issue()._asdict()}
    async with a_gateway(tmp_path, authority, **tls) as (gateway, engine):
        await gateway.rewrite(a_config(engine.url, in_flight_max=STREAMS) | _addresses(gateway) | tls)
        engine.behaviour = Behaviour(tokens=TOKENS, hang_after=TOKENS // 2)
        context, listen = authority.client_context(), gateway.url.removeprefix("https://")
        open_streams = [asyncio.create_task(stream(gateway, context)) for _ in range(STREAMS)]
        requests = [await engine.next_request() for _ in range(STREAMS)]
        served = [await serial_number(gateway, context, listen)]
        for _ in range(ROTATIONS):
            authority.issue()
            await gateway.gateway._certificates.reload()
            served.append(await serial_number(gateway, context, listen))
        await gateway.gateway._certificates.reload()
        for request in requests:
            request.resume.set()
        texts = await asyncio.gather(*open_streams)

    assert len(set(served)) == ROTATIONS + 1
    # Certificates issued within one second expire at the same time.
    assert [each.getMessage() for each in caplog.records].count("certificate replaced") == ROTATIONS
    assert len(texts) == STREAMS
    assert len(set(texts)) == 1
    assert texts[0].count(" ") >= TOKENS - 1


async def test_changed_files_are_noticed_without_a_signal(tmp_path: Path, authority: Authority) -> None:
    tls = {"listen_tls": authority.issue()._asdict()}
    async with a_gateway(tmp_path, authority, **tls) as (gateway, _):
        context, listen = authority.client_context(), gateway.url.removeprefix("https://")
        before = await serial_number(gateway, context, listen)
        authority.issue()
        async with asyncio.timeout(60):
            while await serial_number(gateway, context, listen) == before:
                await asyncio.sleep(0.05)


async def test_invalid_new_file_keeps_the_old_certificate(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue()
    caplog.set_level(logging.INFO, logger="headgate")
    async with a_gateway(tmp_path, authority, listen_tls=files._asdict()) as (gateway, _):
        replace(files.certificate, "not a certificate")
        await gateway.gateway._certificates.reload()
        status = await gateway.status()
        async with gateway.post(chat()) as answer:
            assert answer.status == 200
        async with gateway.http.get(f"{gateway.admin_url}/metrics") as answer:
            page = await answer.text()
        authority.issue()
        await gateway.gateway._certificates.reload()
        repaired = await gateway.status()

    assert status["tls"]["listen"]["problem"] == f"{files.certificate} contains no PEM certificate"
    assert repaired["tls"]["listen"]["problem"] is None
    assert 'headgate_tls_certificate_reload_failed{listener="listen"} 1.0' in page
    assert "the changed certificate cannot be used; the previous one stays in use" in caplog.text


@pytest.mark.parametrize(
    ("starts_in", "expires_in", "reason"),
    [
        (timedelta(days=-2), timedelta(days=-1), "expired on"),
        (timedelta(days=1), timedelta(days=2), "is not valid until"),
    ],
)
async def test_certificate_that_is_not_valid_now_is_not_put_into_use(
    starts_in: timedelta, expires_in: timedelta, reason: str, tmp_path: Path, authority: Authority
) -> None:
    async with a_gateway(tmp_path, authority, listen_tls=authority.issue()._asdict()) as (gateway, _):
        authority.issue(starts_in=starts_in, expires_in=expires_in)
        await gateway.gateway._certificates.reload()
        status = await gateway.status()
        async with gateway.post(chat()) as answer:
            assert answer.status == 200

    assert reason in status["tls"]["listen"]["problem"]


async def test_reload_can_name_other_files(tmp_path: Path, authority: Authority) -> None:
    async with a_gateway(tmp_path, authority, listen_tls=authority.issue()._asdict()) as (gateway, engine):
        context, listen = authority.client_context(), gateway.url.removeprefix("https://")
        before = await serial_number(gateway, context, listen)
        other = {"listen_tls": authority.issue("other")._asdict()}
        await gateway.rewrite(a_config(engine.url) | _addresses(gateway) | other)
        assert await serial_number(gateway, context, listen) != before
        status = await gateway.status()

    assert status["tls"]["listen"]["certificate"].endswith("other.crt")


async def test_missing_authority_of_the_other_gateways_is_shown_until_it_is_restored(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    (ca := tmp_path / "ca.crt").write_text(contents(authority.file))
    tls = {**authority.issue()._asdict(), "ca": str(ca)}
    async with a_gateway(tmp_path, authority, admin_listen_tls=tls) as (gateway, _):
        ca.unlink()
        await gateway.gateway._certificates.reload()
        missing = await gateway.status()
        ca.write_text(contents(authority.file))
        await gateway.gateway._certificates.reload()
        restored = await gateway.status()

    assert missing["tls"]["admin_listen"]["problem"] == f"{ca} cannot be read: no such file or directory"
    assert restored["tls"]["admin_listen"]["problem"] is None
    assert [each.getMessage() for each in caplog.records].count("certificate replaced") == 1


async def test_change_of_a_file_that_a_reload_has_just_named_is_noticed(tmp_path: Path, authority: Authority) -> None:
    async with a_gateway(tmp_path, authority, listen_tls=authority.issue()._asdict()) as (gateway, engine):
        context, listen = authority.client_context(), gateway.url.removeprefix("https://")
        other = {"listen_tls": authority.issue("other")._asdict()}
        await gateway.rewrite(a_config(engine.url) | _addresses(gateway) | other)
        before = await serial_number(gateway, context, listen)
        authority.issue("other")
        await gateway.gateway._certificates._watch.look()
        assert await serial_number(gateway, context, listen) != before


async def test_turning_tls_on_or_off_needs_a_restart(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue()._asdict()
    async with a_gateway(tmp_path, authority, listen_tls=files) as (gateway, engine):
        await gateway.rewrite(a_config(engine.url) | _addresses(gateway) | {"admin_listen_tls": files})
        async with gateway.post(chat()) as answer:
            assert answer.status == 200
        status = await gateway.status()

    assert status["restart_needed"] == ["listen_tls", "admin_listen_tls"]
    assert "changing listen_tls requires a restart" in caplog.text
    assert "changing admin_listen_tls requires a restart" in caplog.text


def _addresses(gateway: GatewayInLoop) -> Config:
    return {"listen": gateway.url.partition("://")[2], "admin_listen": gateway.admin_url.partition("://")[2]}


# Clients that are refused


async def refused(gateway: GatewayInLoop, tls: ssl.SSLContext) -> str:
    """Why the client could not get a response."""
    with pytest.raises((aiohttp.ClientError, OSError)) as raised:
        async with gateway.post(chat(), ssl=tls, headers={"connection": "close"}):
            pass
    return str(raised.value)


async def handshake_error(gateway: GatewayInLoop, tls: ssl.SSLContext) -> str:
    """Why OpenSSL rejects the gateway's certificate. Unlike asyncio, a plain socket then sends an alert."""
    host, _, port = gateway.url.removeprefix("https://").rpartition(":")

    def connect() -> None:
        with socket.create_connection((host, int(port)), timeout=30) as plain:
            tls.wrap_socket(plain, server_hostname=host).close()

    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        await asyncio.to_thread(connect)
    return str(raised.value)


async def test_client_without_a_certificate_is_refused(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    files = authority.issue()
    tls = {**files._asdict(), "client_ca": authority.file}
    async with a_gateway(tmp_path, authority, client=files, listen_tls=tls) as (gateway, engine):
        await refused(gateway, authority.client_context())
        await eventually(lambda: failures(gateway) == {HandshakeFailure.CLIENT_CERTIFICATE: 1})
        async with gateway.post(chat()) as answer:
            assert answer.status == 200
        assert len(engine.requests) == 1

    [logged] = [each for each in caplog.records if each.getMessage() == "TLS handshake failed"]
    fields = logged.__dict__["fields"]
    assert fields["reason"] == "client_certificate"
    assert fields["client"] == "127.0.0.1"
    assert fields["detail"] == "peer did not return a certificate"


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"expires_in": timedelta(days=-1), "starts_in": timedelta(days=-2)}, "certificate has expired"),
        ({"starts_in": timedelta(days=1)}, "certificate is not yet valid"),
    ],
)
async def test_client_certificate_that_is_not_valid_now_is_refused(
    change: dict[str, timedelta],
    detail: str,
    tmp_path: Path,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    tls = {**authority.issue()._asdict(), "client_ca": authority.file}
    client = authority.issue("client", "client", **change)
    async with a_gateway(tmp_path, authority, listen_tls=tls) as (gateway, _):
        await refused(gateway, authority.client_context(client))
        await eventually(lambda: failures(gateway) == {HandshakeFailure.CLIENT_CERTIFICATE: 1})

    assert any(each.__dict__.get("fields", {}).get("detail") == detail for each in caplog.records)


async def test_replacing_the_client_authority_revokes_certificates(tmp_path: Path, authority: Authority) -> None:
    others = Authority(tmp_path / "others")
    accepted = tmp_path / "clients.pem"
    replace(accepted, contents(others.file))
    tls = {**authority.issue()._asdict(), "client_ca": str(accepted)}
    client = others.issue("client", "client")
    async with a_gateway(tmp_path, authority, client=client, listen_tls=tls) as (gateway, _):
        async with gateway.post(chat(), headers={"connection": "close"}) as answer:
            assert answer.status == 200
        replace(accepted, contents(authority.file))
        await gateway.gateway._certificates.reload()
        await refused(gateway, authority.client_context(client))
        await eventually(lambda: failures(gateway) == {HandshakeFailure.CLIENT_CERTIFICATE: 1})
        newer = authority.issue("newer", "client")
        async with gateway.post(chat(), ssl=authority.client_context(newer)) as answer:
            assert answer.status == 200


async def test_client_rejects_a_certificate_with_another_name(tmp_path: Path, authority: Authority) -> None:
    tls = authority.issue("tls", "gateway.example.com")._asdict()
    async with a_gateway(tmp_path, authority, listen_tls=tls) as (gateway, _):
        assert "IP address mismatch" in await handshake_error(gateway, authority.client_context())
        await eventually(lambda: failures(gateway) == {HandshakeFailure.REJECTED_BY_CLIENT: 1})


async def test_client_rejects_an_unknown_authority(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path / "stranger")
    async with a_gateway(tmp_path, authority, listen_tls=authority.issue()._asdict()) as (gateway, _):
        assert "unable to get local issuer certificate" in await handshake_error(gateway, stranger.client_context())
        await eventually(lambda: failures(gateway) == {HandshakeFailure.REJECTED_BY_CLIENT: 1})
