"""`vllm bench serve` measures vLLM through the gateway."""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from testing.gateway import gateway_process_with_client
from testing.real_engines import RealEngine, environment_of, vllm_variables
from tests.acceptance.scenarios import config_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

REQUESTS = 12
OUTPUT_TOKENS = 8
# The `vllm` command needs the metadata of an installed package, which the environment does not have.
VLLM_BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


async def test_all_requests_of_vllm_bench_complete(shared_vllm: RealEngine, tmp_path: Path) -> None:
    folder = environment_of("vllm")
    async with gateway_process_with_client(config_for(shared_vllm, dialect="vllm"), tmp_path) as (gateway, _):
        command = [
            *(folder / "bin/python", "-c", VLLM_BENCH_SERVE, "--backend", "openai-chat"),
            *("--base-url", gateway.url, "--endpoint", "/v1/chat/completions", "--model", "chat"),
            *("--tokenizer", folder / "smollm2", "--dataset-name", "random", "--random-input-len", 32),
            *("--random-output-len", OUTPUT_TOKENS, "--ignore-eos", "--num-prompts", REQUESTS, "--request-rate", 4),
            *("--disable-tqdm", "--save-result", "--result-dir", tmp_path, "--result-filename", "result.json"),
        ]
        process = await asyncio.create_subprocess_exec(
            *map(str, command), env=vllm_variables(folder), stdout=DEVNULL, stderr=PIPE
        )
        _, errors = await process.communicate()
        await gateway.wait_until_idle()

    assert process.returncode == 0, errors.decode()[-4_000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == REQUESTS
    assert result["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
    assert result["median_ttft_ms"] > 0
