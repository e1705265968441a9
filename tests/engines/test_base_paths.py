"""Engines behind a base path, such as one path of a shared proxy, for every dialect."""

from pathlib import Path

import aiohttp
import pytest

from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_detection import detect_engine
from headgate.engines.http_engine import metrics_url
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Probe, ProbeVerdict
from headgate.engines.warm_up import warm_up
from headgate.model.ticket import Api
from testing.fake_engine import FakeEngine
from testing.fake_triton import FakeTriton
from tests.engines.calls import Engines, a_call, read_all

BASE_PATH = "/team-a/engine"
RECORDED = Path(__file__).parent / "recorded"


def engine_of(dialect: str) -> FakeEngine:
    if DIALECTS[dialect].adapter is not None:
        return FakeTriton(base_path=BASE_PATH)
    return FakeEngine(base_path=BASE_PATH)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_requests_and_pages_of_every_dialect_are_below_the_base_path(
    session: aiohttp.ClientSession, dialect: str
) -> None:
    async with engine_of(dialect) as engine, Engines() as engines:
        assert engine.url.endswith(BASE_PATH)
        answer = await engines(engine.url, dialect=dialect).ask(a_call(Api.CHAT, stream=True))
        body = await read_all(answer)
        probe = Probe(
            session,
            engine.url,
            dialect=DIALECTS[dialect],
            served_model="fake",
            api_key=None,
            timeout_s=30,
            page_bytes_max=PAGE_BYTES_MAX,
        )
        health = await probe.health()
        await probe.scrape()
        problem = await warm_up(session, engine.url, dialect=DIALECTS[dialect], served_model="fake", api_key=None)

    assert answer.status == 200
    assert b"[DONE]" in body
    assert health.verdict is ProbeVerdict.SERVING
    assert problem is None
    paths = {each.path for each in (*engine.requests, *engine.probes)}
    assert DIALECTS[dialect].metrics_path in {None, *paths}
    assert not any(path.startswith("/not-below") for path in paths)


async def test_detection_reads_pages_below_the_base_path(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(base_path=BASE_PATH) as engine, FakeTriton(base_path=BASE_PATH) as triton:
        found = await detect_engine(session, engine.url, timeout_s=30)
        at_triton = await detect_engine(session, triton.url, timeout_s=30)

    assert (found.dialect.name, found.models) == ("vllm", ("fake",))
    assert (at_triton.dialect.name, at_triton.models) == ("triton_trtllm", ("fake",))


def test_metrics_of_triton_are_on_another_port_only_without_a_base_path() -> None:
    triton = DIALECTS["triton"]

    assert metrics_url("https://engine:8000", triton) == "https://engine:8002"
    assert metrics_url("https://proxy:8443/team-a/engine", triton) == "https://proxy:8443/team-a/engine"
    assert metrics_url("https://engine:8000/v1", triton) == "https://engine:8002"
