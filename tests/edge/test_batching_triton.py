"""Tests for batching against a real Triton server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from testing.real_triton import triton

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]

TEXTS = [f"text {number}" for number in range(24)]


async def infer(gateway: GatewayInLoop, url: str, *texts: str, delay_ms: int = 0) -> tuple[int, Any]:
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    async with gateway.http.post(url, json={"inputs": [tensor], "parameters": {"delay_ms": delay_ms}}) as answer:
        return answer.status, await answer.json()


async def test_joined_requests_return_the_same_rows_as_single_requests(tmp_path: Path) -> None:
    with triton("embed") as engine:
        config = a_config(engine.url, engine="triton", served_model="embed", in_flight_max=32)
        config["pools"]["small"]["batching"] = {"batch_size_max": 8, "delay_max": "5s"}
        async with gateway_in_loop(config, tmp_path) as gateway:
            direct, through = engine.url + "/v2/models/embed/infer", gateway.url + "/v2/models/m/infer"
            alone = [await infer(gateway, direct, text) for text in TEXTS]
            # The first call is sent alone and lasts long enough for the others to arrive.
            together = await asyncio.gather(*(infer(gateway, through, text, delay_ms=400) for text in TEXTS))
            _, listed = await infer(gateway, through, *TEXTS)
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                metrics = await page.text()

    [sent] = [line.split()[1] for line in metrics.splitlines() if line.startswith('headgate_batch_size_count{pool="sm')]
    assert [status for status, _ in together] == [200] * len(TEXTS)
    assert [body["outputs"][0]["data"] for _, body in together] == [body["outputs"][0]["data"] for _, body in alone]
    assert [body["outputs"][0]["shape"] for _, body in together] == [[1, 8]] * len(TEXTS)
    assert listed["outputs"][0]["shape"] == [len(TEXTS), 8]
    assert listed["outputs"][0]["data"] == [value for _, body in alone for value in body["outputs"][0]["data"]]
    assert float(sent) < len(TEXTS)
