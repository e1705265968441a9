"""Does the script that Kubernetes runs before it ends an engine wait for what runs there, and no longer?"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping

import aiohttp

from testing.gateway import chat
from testing.ports import free_port
from testing.simulated import simulated_engines
from tests.deploy.manifests import KUBERNETES, kustomization, the

QUICK = {"DRAIN_SECONDS_MIN": "0.2", "DRAIN_POLL_SECONDS": "0.05"}


def drain(url: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    environment: Mapping[str, str] = {"DRAIN_ENGINE": url, **QUICK, **settings}
    command = [sys.executable, KUBERNETES / "drain.py"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_it_is_what_the_engine_runs_before_it_ends() -> None:
    engine = the("Deployment", "engines")
    [_, script] = engine.container["lifecycle"]["preStop"]["exec"]["command"]
    [mount] = [each for each in engine.container["volumeMounts"] if each["name"] == "drain"]
    [generated] = [each for each in kustomization()["configMapGenerator"] if each["name"] == "engine-drain"]

    assert script == f"{mount['mountPath']}/{generated['files'][0]}"


def test_the_engine_has_the_time_for_it() -> None:
    text = (KUBERNETES / "drain.py").read_text()
    seconds_max = int(text.partition('"DRAIN_SECONDS_MAX", "')[2].partition('"')[0])

    assert seconds_max + 15 <= the("Deployment", "engines").pod["terminationGracePeriodSeconds"] <= seconds_max + 60


def test_an_idle_engine_is_ended_after_the_least_time() -> None:
    with simulated_engines(1) as [url]:
        began = time.monotonic()
        done = drain(url, DRAIN_SECONDS_MIN="0.5")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("drain: idle after")
    assert time.monotonic() - began >= 0.5


async def test_a_stream_is_waited_for() -> None:
    with simulated_engines(1, "--speed-up", "0.1") as [url]:
        body = chat(model="sim", stream=True, max_tokens=100, ignore_eos=True)
        async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as answer:
            draining = asyncio.create_task(asyncio.to_thread(drain, url))
            stream = await answer.read()
            drained_before = draining.done()
            done = await draining

    assert stream.endswith(b"data: [DONE]\n\n")
    assert not drained_before
    assert done.returncode == 0


async def test_a_stream_that_takes_too_long_is_given_up() -> None:
    with simulated_engines(1, "--speed-up", "0.01") as [url]:
        body = chat(model="sim", stream=True, max_tokens=1_000, ignore_eos=True)
        async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            done = await asyncio.to_thread(drain, url, DRAIN_SECONDS_MAX="1")

    assert done.returncode == 1
    assert done.stdout == "drain: still busy after 1 s; what runs is cut\n"


def test_where_the_engine_is_gone_there_is_nothing_to_wait_for() -> None:
    done = drain(f"http://127.0.0.1:{free_port()}", DRAIN_SECONDS_MIN="30")

    assert done.returncode == 0
    assert "answers no more" in done.stdout


def test_it_needs_only_python() -> None:
    imports = [line.split()[1] for line in (KUBERNETES / "drain.py").read_text().splitlines() if line[:7] == "import "]

    assert {name.partition(".")[0] for name in imports} <= set(sys.stdlib_module_names)
