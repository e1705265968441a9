"""Does KEDA hear from a whole gateway what its autoscaler wants?"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest
import yaml

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, events_of, gateway_beside
from testing.ports import free_port
from testing.simulated import engine_in_loop
from tests.fleets.keda_stubs import stubs

pytestmark = pytest.mark.process


async def test_a_pool_that_is_scaled_is_told_of_and_another_is_not_found(tmp_path: Path) -> None:
    port = free_port()
    async with engine_in_loop() as url:
        config = a_config(url, served_model="sim", scaler_listen=f"127.0.0.1:{port}")
        config["pools"]["small"]["scaling"] = {"endpoints_max": 4, "warm_min": 2, "period": "200ms"}
        async with gateway_beside(config, tmp_path) as (_, process):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                client, messages = stubs().Client(channel), stubs().messages
                ref = messages.ScaledObjectRef(name="e", namespace="n", scalerMetadata={"pool": "small"})
                active = await client.IsActive(ref)
                stream = client.StreamIsActive(ref)
                first = await stream.read()
                [value] = (await client.GetMetrics(messages.GetMetricsRequest(scaledObjectRef=ref))).metricValues
                process.terminate()
                end = await stream.read()

    assert (active.result, first.result, value.metricValue) == (True, True, 2)
    assert end is grpc.aio.EOF


async def test_a_gateway_that_leaves_lets_keda_go_at_once_and_its_streams_end_later(tmp_path: Path) -> None:
    port = free_port()
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=5, hang_after=2))
        config = a_config(engine.url, scaler_listen=f"127.0.0.1:{port}", drain_grace="150s")
        config["pools"]["small"]["scaling"] = {"endpoints_max": 4}
        async with gateway_beside(config, tmp_path) as (gateway, process):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                ref = stubs().messages.ScaledObjectRef(scalerMetadata={"pool": "small"})
                asked = stubs().Client(channel).StreamIsActive(ref)
                await asked.read()
                async with gateway.post(chat(stream=True)) as answer:
                    held = await engine.next_request()
                    await held.hung.wait()
                    process.terminate()
                    end = await asyncio.wait_for(asked.read(), 60)
                    held.resume.set()
                    whole = await answer.read()

    assert end is grpc.aio.EOF
    assert events_of(whole)[-1] == "[DONE]"


def test_without_grpc_a_gateway_that_should_answer_keda_says_what_to_install(tmp_path: Path) -> None:
    config = a_config(f"http://127.0.0.1:{free_port()}", scaler_listen=f"127.0.0.1:{free_port()}")
    config["pools"]["small"]["scaling"] = {"endpoints_max": 4}
    (tmp_path / "headgate.yaml").write_text(yaml.safe_dump(config))
    program = "import sys; sys.modules['grpc'] = None; from headgate.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "serve", str(tmp_path / "headgate.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=dict(os.environ))

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "headgate: scaler_listen: KEDA is answered over gRPC; pip install 'headgate[kubernetes]'"
    )
