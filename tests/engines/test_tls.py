"""Connections to engines over TLS, and their certificates."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_detection import DetectionError, detect_engine
from headgate.engines.engine_tls import EngineTls
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Health, Probe, ProbeVerdict
from headgate.engines.warm_up import warm_up
from headgate.model.fault import Fault
from headgate.ports.engine import EngineFault
from headgate.ports.tls import ClientTlsOptions, server_context
from testing.certificates import PAST, Authority
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_triton import FakeTriton
from tests.engines.calls import Engines, a_call, read_all
from tests.engines.listeners import listening


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    async with Engines() as engines:
        yield engines


def trusting(authority: Authority, **others: str) -> EngineTls:
    return EngineTls(ClientTlsOptions(ca=authority.file, **others))


async def fault_at(engines: Engines, url: str, tls: EngineTls | None) -> EngineFault:
    with pytest.raises(EngineFault) as caught:
        await read_all(await engines(url, tls=tls).ask(a_call()))
    return caught.value


async def health_at(session: aiohttp.ClientSession, url: str, tls: EngineTls | None) -> Health:
    return await Probe(
        session,
        url,
        dialect=DIALECTS["vllm"],
        served_model="fake",
        api_key=None,
        timeout_s=30,
        page_bytes_max=PAGE_BYTES_MAX,
        tls=tls,
    ).health()


async def test_all_requests_to_an_engine_use_the_pools_tls(
    authority: Authority, engines: Engines, session: aiohttp.ClientSession
) -> None:
    tls = EngineTls(authority.client())
    async with FakeEngine(tls=server_context(authority.server(client_ca=authority.file))) as engine:
        answer = await read_all(await engines(engine.url, tls=tls).ask(a_call()))
        health = await health_at(session, engine.url, tls)
        found = await detect_engine(session, engine.url, timeout_s=30, tls=tls)
        problem = await warm_up(
            session, engine.url, dialect=DIALECTS["vllm"], served_model="fake", api_key=None, tls=tls
        )

    assert b'"choices"' in answer
    assert health == Health(ProbeVerdict.SERVING, ("fake",))
    assert (found.dialect.name, found.models, found.version) == ("vllm", ("fake",), "0.0-fake")
    assert problem is None
    assert {each.path for each in engine.probes} >= {"/health", "/v1/models", "/metrics", "/version"}


async def test_triton_metrics_on_their_own_port_use_the_pools_tls(
    authority: Authority, session: aiohttp.ClientSession
) -> None:
    tls = trusting(authority)
    async with FakeTriton(tls=server_context(authority.server())) as triton:
        found = await detect_engine(session, triton.url, timeout_s=30, tls=tls)

    assert (found.dialect.name, found.models) == ("triton_trtllm", ("fake",))


async def test_server_name_replaces_the_host_of_the_url(
    authority: Authority, engines: Engines, session: aiohttp.ClientSession
) -> None:
    tls = trusting(authority, server_name="engine.internal")
    async with FakeEngine(tls=server_context(authority.server("engine.internal"))) as engine:
        answer = await read_all(await engines(engine.url, tls=tls).ask(a_call()))
        health = await health_at(session, engine.url, tls)

    assert b'"choices"' in answer
    assert health.verdict is ProbeVerdict.SERVING


UNTRUSTED = "the engine's certificate is not issued by a trusted authority"
EXPIRED = "the engine's certificate has expired"
OTHER_NAME = "the engine's certificate is for a different name"
NO_CERTIFICATE = "the engine requires a client certificate"
REJECTED = "the engine rejects the client certificate (unknown ca)"
WITHOUT_TLS = "the engine does not use TLS on this port"


REFUSALS = {
    "unknown authority": f"{UNTRUSTED}; set the pool's tls.ca to the PEM file of the authority that issued it",
    "expired": f"{EXPIRED}; renew it",
    "other name": (
        f"{OTHER_NAME}; set the pool's tls.server_name to a name in the certificate, or correct the host in the URL"
    ),
    "no client certificate": f"{NO_CERTIFICATE}; set the pool's tls.certificate and tls.key",
    "other client authority": f"{REJECTED}; set the pool's tls.certificate to one that the engine trusts",
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_refused_handshake_is_reported_with_its_cause_and_the_next_step(
    engines: Engines, session: aiohttp.ClientSession, tmp_path: Path, case: str
) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    offered = {
        "unknown authority": other.server,
        "expired": partial(ours.server, **PAST),
        "other name": partial(ours.server, "engine.internal"),
    }.get(case, partial(ours.server, client_ca=ours.file))()
    tls = EngineTls(other.client(ca=ours.file)) if case == "other client authority" else trusting(ours)

    with alerting_server(server_context(offered)) as url:
        fault = await fault_at(engines, url, tls)
        health = await health_at(session, url, tls)

    reason, _, _ = REFUSALS[case].partition("; ")
    assert (str(fault), fault.fault) == (f"the request to the engine failed: {reason}", Fault.CONNECTION)
    assert health.verdict is ProbeVerdict.NO_RESPONSE
    assert health.problem == f"GET /health failed: {REFUSALS[case]}"


@contextmanager
def alerting_server(context: ssl.SSLContext) -> Generator[str]:
    """A server that reports a failed handshake to the client, unlike asyncio's, and closes the connection."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                with plain, contextlib.suppress(OSError):
                    connection = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                    with connection:
                        with contextlib.suppress(ssl.SSLError):
                            connection.do_handshake()
                        connection.shutdown(socket.SHUT_WR)
                        # Unread bytes would reset the connection, and the client could miss the alert.
                        while socket.socket.recv(connection, 4096):
                            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_connection_closed_after_the_handshake_suggests_a_client_certificate(
    authority: Authority, session: aiohttp.ClientSession
) -> None:
    async with FakeEngine(tls=server_context(authority.server(client_ca=authority.file))) as engine:
        health = await health_at(session, engine.url, trusting(authority))

    reason, _, hint = (health.problem or "").partition("; ")
    # The server resets the connection if it has not read the request yet.
    closed = ("the connection was closed without a response", "connection reset by peer", "broken pipe")
    assert reason in [f"GET /health failed: {each}" for each in closed]
    assert hint == "if the engine requires a client certificate, check the pool's tls.certificate and tls.key"


async def test_engine_without_tls_is_reported(engines: Engines, session: aiohttp.ClientSession) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async with listening(refuse) as url:
        secured = url.replace("http://", "https://")
        fault = await fault_at(engines, secured, None)
        health = await health_at(session, secured, EngineTls(ClientTlsOptions()))

    assert str(fault) == f"the request to the engine failed: {WITHOUT_TLS}"
    assert health.problem == f"GET /health failed: {WITHOUT_TLS}; write its URL with http, or correct the port"


async def test_engine_that_requires_tls_is_reported(
    authority: Authority, engines: Engines, session: aiohttp.ClientSession
) -> None:
    async with FakeEngine(tls=server_context(authority.server())) as engine:
        url = engine.url.replace("https://", "http://")
        fault = await fault_at(engines, url, None)
        health = await health_at(session, url, None)

    assert fault.fault is Fault.CONNECTION
    assert health.verdict is ProbeVerdict.NO_RESPONSE


async def test_detection_names_the_tls_problem_instead_of_a_stopped_engine(
    authority: Authority, session: aiohttp.ClientSession
) -> None:
    async with FakeEngine(tls=server_context(authority.server())) as engine:
        with pytest.raises(DetectionError) as caught:
            await detect_engine(session, engine.url, timeout_s=30)

    assert str(caught.value) == (
        f"GET /v1/models failed: {UNTRUSTED}; set the pool's tls.ca to the PEM file of the authority that issued it"
    )


async def test_unusable_files_fail_requests_without_blaming_the_engine(
    tmp_path: Path, engines: Engines, session: aiohttp.ClientSession
) -> None:
    missing = str(tmp_path / "missing.pem")
    tls = EngineTls(ClientTlsOptions(ca=missing))

    fault = await fault_at(engines, "https://127.0.0.1:1", tls)
    health = await health_at(session, "https://127.0.0.1:1", tls)

    problem = f"{missing} cannot be read: no such file or directory"
    assert (str(fault), fault.fault) == (f"the request to the engine failed: {problem}", Fault.GATEWAY)
    assert (health.problem, health.trouble) == (f"GET /health failed: {problem}", None)
    assert tls.problem == problem


async def test_new_files_are_used_by_new_connections_only(authority: Authority, engines: Engines) -> None:
    options = authority.client()
    tls = EngineTls(options)
    async with FakeEngine(tls=server_context(authority.server(client_ca=authority.file))) as engine:
        engine.behaviour = Behaviour(tokens=2, hang_after=1)
        asked = engines(engine.url, tls=tls, dialect="llamacpp")
        answer = await asked.ask(a_call(stream=True))
        received = await engine.next_request()
        before = tls.context
        authority.issue("gateway", "gateway.example")
        assert await tls.reload()
        asked.renew_connections()
        received.resume.set()
        body = await read_all(answer)

    assert tls.context is not before
    assert b"[DONE]" in body
    assert asked.connections_idle == 0


async def test_unusable_new_files_keep_the_previous_context(authority: Authority, tmp_path: Path) -> None:
    options = authority.client()
    tls = EngineTls(options)
    before = tls.context
    assert options.key is not None
    shutil.copy(Authority(tmp_path / "other").issue("x", "x.example")[1], options.key)

    assert not await tls.reload()
    assert tls.context is before
    assert tls.problem == f"the key in {options.key} does not belong to the certificate in {options.certificate}"
    authority.issue("gateway", "gateway.example")
    assert await tls.reload()
    assert tls.problem is None


def test_context_requires_tls_1_2_and_verifies_the_server(authority: Authority) -> None:
    context = trusting(authority).context

    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
