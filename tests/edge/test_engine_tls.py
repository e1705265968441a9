"""A gateway whose engines use TLS, while certificates change."""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from headgate.ports.tls import server_context
from testing.certificates import Authority
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_http import Received
from testing.gateway import GatewayInLoop, a_config, chat, events_of, gateway_in_loop

STREAMS = 200
ROTATIONS = 4


def config_of(engine: FakeEngine, tls: dict[str, str], **settings: Any) -> dict[str, Any]:
    config = a_config(engine.url, in_flight_max=2 * STREAMS, **settings)
    config["pools"]["small"]["tls"] = tls
    return config


async def stream(gateway: GatewayInLoop) -> list[str]:
    async with gateway.post(chat(stream=True)) as answer:
        assert answer.status == 200
        return events_of(await answer.read())


async def test_streams_survive_rotations_of_the_client_certificate(tmp_path: Path) -> None:
    """Each client certificate comes from another authority."""
    engines_ca = Authority(tmp_path / "engines")
    authorities = [Authority(tmp_path / f"authority-{number}") for number in range(ROTATIONS + 1)]
    trusted = tmp_path / "trusted.pem"
    trusted.write_text("".join(each.pem for each in authorities))
    _install(authorities[0], tmp_path)
    tls = {"ca": engines_ca.file, "certificate": "gateway.crt", "key": "gateway.key"}
    server = server_context(engines_ca.server(client_ca=str(trusted)))

    async with (
        FakeEngine(tls=server) as engine,
        gateway_in_loop(config_of(engine, tls), tmp_path) as gateway,
    ):
        streams: list[asyncio.Task[list[str]]] = []
        hanging: list[Received] = []
        short: list[list[str]] = []
        for authority in authorities[1:]:
            engine.behaviour = Behaviour(tokens=8, hang_after=4)
            streams += [asyncio.create_task(stream(gateway)) for _ in range(STREAMS // ROTATIONS)]
            hanging += [await engine.next_request() for _ in range(STREAMS // ROTATIONS)]
            await asyncio.gather(*(each.hung.wait() for each in hanging))
            engine.behaviour = Behaviour(tokens=8)
            installed = _install(authority, tmp_path)
            async with asyncio.timeout(60):
                presented = 0
                while presented != installed:
                    short.append(await stream(gateway))
                    presented = (await engine.next_request()).client_certificate
        for each in hanging:
            each.resume.set()
        long = await asyncio.gather(*streams)
        status = await gateway.status()

    assert len(long) == STREAMS
    assert [each for each in (*long, *short) if len(each) != 9 or each[-1] != "[DONE]"] == []
    assert status["engine_tls_problems"] == []
    assert len({each.client_certificate for each in hanging}) == ROTATIONS


def _install(authority: Authority, files: Path) -> int:
    """Issues a client certificate, copies its files to a directory and returns its serial number."""
    certificate, key = map(Path, authority.issue("gateway", "gateway.example"))
    for each in (certificate, key):
        shutil.copy(each, files / each.name)
    return x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number


async def test_unusable_new_files_are_reported_and_requests_continue(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    _install(authority, tmp_path)
    tls = {"ca": authority.file, "certificate": "gateway.crt", "key": "gateway.key"}

    async with (
        FakeEngine(tls=server_context(authority.server(client_ca=authority.file))) as engine,
        gateway_in_loop(config_of(engine, tls), tmp_path) as gateway,
    ):
        (tmp_path / "gateway.key").write_text("not a key")
        broken = await gateway.wait_for_status(lambda status: status["engine_tls_problems"])
        answered = await stream(gateway)
        _install(authority, tmp_path)
        await gateway.wait_for_status(lambda status: not status["engine_tls_problems"])

    [problem] = broken["engine_tls_problems"]
    assert problem.startswith(f"{tmp_path}/gateway.key contains no usable private key")
    assert answered[-1] == "[DONE]"


async def test_rejected_configuration_is_read_again_only_when_a_file_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ours")
    caplog.set_level(logging.INFO, logger="headgate")

    async with FakeEngine() as engine, FakeEngine(tls=server_context(authority.server())) as secure:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            config["pools"]["small"] |= {"tls": {"ca": "late.pem"}, "endpoints": [secure.url]}
            (tmp_path / "headgate.yaml").write_text(yaml.safe_dump(config))
            watch = gateway.gateway._reload._watch
            for _ in range(3):
                await watch.look()
            rejected = await gateway.status()
            reloads = sum("a configuration file has changed" in each.getMessage() for each in caplog.records)
            shutil.copy(authority.file, tmp_path / "late.pem")
            await watch.look()
            await gateway.wait_until_ready(1)
            fixed = await gateway.status()

    assert "late.pem cannot be read: no such file or directory" in rejected["reload_problems"][0]
    assert reloads == 1
    assert fixed["reload_problems"] == []
    assert [each["id"] for each in fixed["endpoints"]] == [f"small/{secure.url.removeprefix('https://')}"]


async def test_status_names_the_cause_of_a_refused_handshake(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")

    async with (
        FakeEngine(tls=server_context(other.server())) as engine,
        gateway_in_loop(config_of(engine, {"ca": ours.file}), tmp_path, wait_for=0) as gateway,
    ):
        status = await gateway.wait_for_status(lambda status: status["endpoints"][0]["trouble"] is not None)

    reason = "the engine's certificate is not issued by a trusted authority"
    said = f"GET /health failed: {reason}; set the pool's tls.ca to the PEM file of the authority that issued it"
    assert status["engines"][0]["problems"] == [said]
    assert status["endpoints"][0]["trouble_detail"] == said
