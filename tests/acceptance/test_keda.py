"""KEDA reads the desired replicas from a live gateway."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest
import yaml

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, events_of, gateway_process_with_client
from testing.ports import free_port
from testing.simulated_engines import engine_in_loop
from tests.fleets.keda_stubs import stubs

pytestmark = pytest.mark.process


async def test_scaler_reports_desired_replicas_until_gateway_shuts_down(tmp_path: Path) -> None:
    port = free_port()
    async with engine_in_loop() as url:
        config = a_config(url, served_model="sim", scaler_listen=f"127.0.0.1:{port}")
        config["pools"]["small"]["scaling"] = {"endpoints_max": 4, "warm_endpoints_min": 2, "period": "200ms"}
        async with gateway_process_with_client(config, tmp_path) as (_, process):
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


async def test_draining_gateway_closes_keda_stream_before_open_responses_end(tmp_path: Path) -> None:
    port = free_port()
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=5, hang_after=2))
        config = a_config(engine.url, scaler_listen=f"127.0.0.1:{port}", drain_grace="150s")
        config["pools"]["small"]["scaling"] = {"endpoints_max": 4}
        async with gateway_process_with_client(config, tmp_path) as (gateway, process):
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


def test_gateway_with_scaler_reports_missing_package_if_grpc_is_not_installed(tmp_path: Path) -> None:
    config = a_config(f"http://127.0.0.1:{free_port()}", scaler_listen=f"127.0.0.1:{free_port()}")
    config["pools"]["small"]["scaling"] = {"endpoints_max": 4}
    (tmp_path / "headgate.yaml").write_text(yaml.safe_dump(config))
    program = "import sys; sys.modules['grpc'] = None; from headgate.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "serve", "--config", str(tmp_path / "headgate.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=dict(os.environ))

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "headgate: scaler_listen: KEDA support requires gRPC; pip install 'headgate[kubernetes]'"
    )
