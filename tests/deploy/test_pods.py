"""The gateway of the manifests starts as a process, passes its probes, serves a request and drains."""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from headgate.wire.keys import digest, format_digest
from testing.certificates import Authority
from testing.fake_engine import Behaviour
from testing.gateway import chat
from testing.stores import redis
from tests.deploy.manifests import KUBERNETES, the
from tests.deploy.overlays import CELL, TLS, patched
from tests.deploy.pods import Pod, one_engine, running_pod

SECRET = {"HEADGATE_KEY_SECRET": "x" * 43, "ENGINE_KEY": "engine-key"}


def new_key(config: Path) -> str:
    """Create a key as docs/guides/kubernetes.md does, and return it."""
    command = [sys.executable, "-m", "headgate.cli.main", "keys", "new", "--tenant", "team", "--write"]
    done = subprocess.run(
        [*command, "--config", config], env={**os.environ, **SECRET}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def with_key(config: Path, folder: Path) -> tuple[str, str]:
    """A copy of the configuration with a key of the tenant in it, and the key."""
    copy = folder / config.name
    copy.write_text(config.read_text())
    return new_key(copy), copy.read_text()


async def events(answer: Any) -> AsyncIterator[bytes]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield line


@pytest.mark.process
async def test_gateway_pod_starts_serves_and_drains(tmp_path: Path) -> None:
    key, config = with_key(KUBERNETES / "headgate.yaml", tmp_path)
    deployment = the("Deployment", "headgate")
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        one_engine() as (engine, dns),
        running_pod("headgate-0", deployment, config, tmp_path, engine=engine, dns=dns, secret=SECRET) as pod,
    ):
        await pod.wait_for_success("startupProbe")
        await pod.wait_for_success("readinessProbe")
        await pod.wait_for_success("livenessProbe")
        await until_served(pod, headers)
        await engine.next_request()
        engine.behaviour = Behaviour(hang_after=2, tokens=4)
        body = chat(model="qwen3", stream=True)
        async with pod.http.post(f"{pod.url('http')}/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            received = await engine.next_request()
            lines = events(answer)
            first = await anext(lines)
            pod.process.terminate()
            await pod.wait_for_failure("readinessProbe")
            await pod.wait_for_success("livenessProbe")
            received.resume.set()
            rest = [line async for line in lines]
        ended = await asyncio.to_thread(pod.process.wait_until_ended)
        log = pod.process.log()

    assert b"chat.completion.chunk" in first
    assert rest[-1].strip() == b"data: [DONE]"
    assert ended == 0, log
    assert all(line.startswith("{") for line in log.splitlines()), "the log is not JSON as the arguments demand"


@pytest.mark.cell
@pytest.mark.timeout(300)
async def test_cell_pods_reach_each_other_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    key, config = with_key(CELL / "headgate.yaml", tmp_path)
    deployment = patched(CELL, "gateway.yaml")
    names = [f"headgate-{number}" for number in range(deployment.spec["replicas"])]
    headers = {"Authorization": f"Bearer {key}"}
    async with AsyncExitStack() as stack:
        engine, dns = await stack.enter_async_context(one_engine())
        secret = SECRET | {"HEADGATE_STORE": stack.enter_context(redis()).url}
        pods = [
            await stack.enter_async_context(
                running_pod(name, deployment, config, tmp_path, engine=engine, dns=dns, secret=secret)
            )
            for name in names
        ]
        for pod in pods:
            await pod.wait_for_success("startupProbe")
            await pod.wait_for_success("readinessProbe")
        request = await until_served(pods[0], headers)
        explained = await until_explained(pods[-1], request)
        os.kill(pods[0].process.pid, signal.SIGKILL)
        for pod in pods[1:]:
            await pod.wait_for_success("livenessProbe")
            await until_served(pod, headers)
            await pod.wait_for_success("readinessProbe")

    assert explained["reported_by"] == names[0]


async def until_explained(pod: Pod, request: str) -> dict[str, Any]:
    """Wait until the member has found the others, which takes a few seconds."""
    async with asyncio.timeout(60):
        while "reported_by" not in (told := await pod.page(f"/explain/{request}")):
            await asyncio.sleep(0.1)
    return told


async def until_served(pod: Pod, headers: dict[str, str], tls: ssl.SSLContext | None = None) -> str:
    """Send requests until one succeeds, and return its id.

    They may be rejected until the gateway has found the engines, and while the cell replaces its scheduler.
    """
    url = f"{pod.url('http', 'https' if tls else 'http')}/v1/chat/completions"
    async with asyncio.timeout(60):
        while True:
            async with pod.http.post(url, json=chat(model="qwen3"), headers=headers, ssl=tls or True) as answer:
                if answer.status == 200:
                    return answer.headers["x-request-id"]
            await asyncio.sleep(0.1)


def test_members_may_call_each_others_admin_listeners() -> None:
    policy = yaml.safe_load((CELL / "networkpolicy.yaml").read_text())
    labels = the("Deployment", "headgate").pod_labels
    [rule] = policy["spec"]["ingress"]

    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert rule == {"from": [{"podSelector": {"matchLabels": labels}}], "ports": [{"port": "admin"}]}


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_tls_pod_reads_replaced_certificates_and_secrets_without_a_restart(tmp_path: Path) -> None:
    key = "hg-" + "k" * 40
    hashed = format_digest(digest(SECRET["HEADGATE_KEY_SECRET"].encode(), key))
    config = (TLS / "headgate.yaml").read_text().replace(f"hmac-sha256:{'0' * 64}", hashed)
    authority = Authority(tmp_path / "authority")
    trusting = authority.client_context()
    headers = {"Authorization": f"Bearer {key}"}
    deployment = patched(TLS, "gateway.yaml")
    async with (
        one_engine() as (engine, dns),
        running_pod(
            "headgate-0",
            deployment,
            config,
            tmp_path,
            engine=engine,
            dns=dns,
            secret=SECRET,
            certificate=certificate_of(authority),
        ) as pod,
    ):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            await pod.wait_for_success(probe)
        await until_served(pod, headers, trusting)
        await engine.next_request()
        url = f"{pod.url('http', 'https')}/v1/chat/completions"
        engine.behaviour = Behaviour(hang_after=2, tokens=4)
        async with pod.http.post(url, json=chat(model="qwen3", stream=True), headers=headers, ssl=trusting) as answer:
            assert answer.status == 200, await answer.text()
            received = await engine.next_request()
            lines = events(answer)
            await anext(lines)
            before = await serial_of(pod, trusting)
            pod.mounts["tls"].write(certificate_of(authority))
            pod.mounts["secrets"].write(SECRET | {"ENGINE_KEY": "another-engine-key"})
            async with asyncio.timeout(60):
                while await serial_of(pod, trusting) == before:
                    await asyncio.sleep(0.1)
            received.resume.set()
            rest = [line async for line in lines]
        engine.behaviour, engine.api_key = Behaviour(), "another-engine-key"
        await until_served(pod, headers, trusting)
        process = Path("/proc") / str(pod.process.pid)
        known = process.joinpath("environ").read_bytes() + process.joinpath("cmdline").read_bytes()
        log = pod.process.log()

    assert rest[-1].strip() == b"data: [DONE]"
    for secret in (*SECRET.values(), "another-engine-key"):
        assert secret.encode() not in known
        assert secret not in log


def certificate_of(authority: Authority) -> dict[str, str]:
    """A new certificate under the names of a Secret of type kubernetes.io/tls."""
    certificate, key = authority.issue()
    files = {"tls.crt": certificate, "tls.key": key, "ca.crt": authority.file}
    return {name: Path(file).read_text() for name, file in files.items()}


async def serial_of(pod: Pod, trusting: ssl.SSLContext) -> int:
    """Serial number of the certificate that new connections get."""
    port = pod.ports[pod.deployment.port("http")]
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number
