"""The engine pods' preStop script waits until the engine is idle or the timeout expires."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import module_from_spec, spec_from_file_location

import aiohttp
import pytest

from testing.gateway import chat
from testing.ports import free_port
from testing.simulated_engines import engine_in_loop
from tests.deploy.manifests import KUBERNETES, kustomization, the

SCRIPT = KUBERNETES / "drain.py"
QUICK = {"DRAIN_SECONDS_MIN": "0.2", "DRAIN_POLL_SECONDS": "0.05"}
Drain = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drain:
    """Run the script in a thread and return its exit status and output."""

    async def run(url: str, **settings: str) -> tuple[int, str]:
        for name, value in {"DRAIN_ENGINE": url, **QUICK, **settings}.items():
            monkeypatch.setenv(name, value)
        spec = spec_from_file_location("drain", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        script = module_from_spec(spec)
        spec.loader.exec_module(script)
        status = await asyncio.to_thread(script.main)
        return status, capsys.readouterr().out

    return run


def test_engine_runs_drain_script_as_prestop_hook() -> None:
    engine = the("Deployment", "engines")
    [_, script] = engine.container["lifecycle"]["preStop"]["exec"]["command"]
    [mount] = [each for each in engine.container["volumeMounts"] if each["name"] == "drain"]
    [generated] = [each for each in kustomization()["configMapGenerator"] if each["name"] == "engine-drain"]

    assert script == f"{mount['mountPath']}/{generated['files'][0]}"


def test_termination_grace_period_covers_the_drain() -> None:
    text = (KUBERNETES / "drain.py").read_text()
    seconds_max = int(text.partition('"DRAIN_SECONDS_MAX", "')[2].partition('"')[0])

    assert seconds_max + 15 <= the("Deployment", "engines").pod["terminationGracePeriodSeconds"] <= seconds_max + 60


async def test_draining_an_idle_engine_takes_the_minimum_time(drain: Drain) -> None:
    async with engine_in_loop() as url:
        began = time.monotonic()
        status, said = await drain(url, DRAIN_SECONDS_MIN="0.4")

    assert status == 0
    assert said.startswith("drain: idle after")
    assert time.monotonic() - began >= 0.4


async def test_drain_waits_for_a_running_stream(drain: Drain) -> None:
    async with engine_in_loop(speed_up=0.1) as url:
        body = chat(model="sim", stream=True, max_tokens=40, ignore_eos=True)
        async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as answer:
            draining = asyncio.ensure_future(drain(url))
            stream = await answer.read()
            drained_before = draining.done()
            status, _ = await draining

    assert stream.endswith(b"data: [DONE]\n\n")
    assert not drained_before
    assert status == 0


async def test_drain_stops_waiting_after_the_timeout(drain: Drain) -> None:
    async with engine_in_loop(speed_up=0.01) as url:
        body = chat(model="sim", stream=True, max_tokens=1_000, ignore_eos=True)
        async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            status, said = await drain(url, DRAIN_SECONDS_MAX="0.3")

    assert status == 1
    assert re.fullmatch(r"drain: requests are still running after \d+ s and will be aborted\n", said)


@pytest.mark.process
def test_drain_ends_immediately_if_the_engine_is_unreachable() -> None:
    environment = {"DRAIN_ENGINE": f"http://127.0.0.1:{free_port()}", "DRAIN_SECONDS_MIN": "30"}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 0
    assert "does not respond" in done.stdout


def test_drain_script_imports_only_the_standard_library() -> None:
    imports = [line.split()[1] for line in (KUBERNETES / "drain.py").read_text().splitlines() if line[:7] == "import "]

    assert {name.partition(".")[0] for name in imports} <= set(sys.stdlib_module_names)
