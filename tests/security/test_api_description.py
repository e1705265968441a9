"""docs/reference/openapi.yaml matches the gateway.

Its paths, statuses and codes match the code. Schemathesis sends valid and invalid requests to a running gateway, and
the gateway must respond as described and never with an internal error.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.edge.anthropic import MESSAGES_ROUTES
from headgate.edge.app import GET_ROUTES, ROUTES
from headgate.edge.error_replies import UNKNOWN_URL
from headgate.model.outcome import HTTP_REPLIES, STREAM_INTERRUPTED, Outcome
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import gateway_in_loop
from tests.edge.test_the_door import config_with_keys

DESCRIPTION = Path(__file__).parents[2] / "docs/reference/openapi.yaml"
POSTED = (*ROUTES, *MESSAGES_ROUTES)
UNTOLD = {Outcome.COMPLETED, Outcome.CANCELLED, Outcome.ENGINE_REJECTED}
"""Outcomes for which the gateway has no error code of its own: success, no response, and the engine's own error."""
OF_THE_CONNECTION = {"405", "408", "431", "500", "501", "505"}
"""Statuses for messages that do not become a request with an outcome."""
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,ignored_auth"
)
SEED = 20260324


def described() -> dict[str, Any]:
    return yaml.safe_load(DESCRIPTION.read_text())


def test_described_paths_match_the_routes() -> None:
    methods = {path: list(item) for path, item in described()["paths"].items()}

    posted = {path.decode(): ["post"] for path in POSTED}
    assert methods == posted | {path.decode(): ["get"] for path in GET_ROUTES}


@pytest.mark.parametrize("path", [path.decode() for path in POSTED])
def test_described_statuses_match_the_outcomes(path: str) -> None:
    responses = described()["paths"][path]["post"]["responses"]

    told = {str(face.status) for outcome, face in HTTP_REPLIES.items() if outcome not in UNTOLD}
    assert set(responses) == told | OF_THE_CONNECTION | {"200"}


def test_described_codes_match_the_outcomes() -> None:
    codes = described()["components"]["schemas"]["Code"]["enum"]

    ours = {face.code for outcome, face in HTTP_REPLIES.items() if outcome not in UNTOLD}
    assert codes == sorted(ours | {UNKNOWN_URL, STREAM_INTERRUPTED.code, "internal_error"})


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("examples", "phases"),
    [
        pytest.param(2, "examples,fuzzing", id="short"),
        pytest.param(15, "examples,coverage,fuzzing", id="long", marks=pytest.mark.nightly),
    ],
)
async def test_gateway_responds_as_described(tmp_path: Path, examples: int, phases: str) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=3)
        status, said = await schemathesis(gateway.url, for_this_gateway(tmp_path), tmp_path, examples, phases)

    assert status == 0, said
    # Otherwise the run would have covered only rejections.
    assert len(engine.requests) > examples


def for_this_gateway(folder: Path) -> Path:
    """Limit the description to this gateway's models and classes, so that most requests are accepted."""
    description = described()
    description["components"]["schemas"]["Model"]["enum"] = ["m", "other"]
    parameters = description["components"]["parameters"]
    parameters["Class"]["schema"]["enum"] = ["interactive", "long", "batch"]
    # An exceeded deadline returns 504, which is correct but counts as a server error.
    parameters["Deadline"]["schema"]["minimum"] = 60_000
    file = folder / "openapi.yaml"
    file.write_text(yaml.safe_dump(description))
    return file


async def schemathesis(url: str, description: Path, folder: Path, examples: int, phases: str) -> tuple[int, str]:
    tool = Path(sys.executable).parent / "schemathesis"
    options = f"--checks {CHECKS} --max-examples {examples} --seed {SEED} --generation-database none --workers 1"
    limits = f"--request-timeout 30 --no-color --warnings off --phases {phases} --suppress-health-check all"
    process = await asyncio.create_subprocess_exec(
        tool,
        "run",
        description,
        "--url",
        url,
        "--header",
        "Authorization: Bearer hg-acme",
        *options.split(),
        *limits.split(),
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, out.decode()
