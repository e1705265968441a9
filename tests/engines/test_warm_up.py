"""Is an engine's first request ours, and what is made of one that fails?"""

from headgate.engines.dialects import DIALECTS
from headgate.engines.page import open_session
from headgate.engines.warm_up import warm_up
from testing.fake_engine import Behaviour, FakeEngine
from testing.ports import free_port

VLLM = DIALECTS["vllm"]


async def warmed(url: str, *, api_key: str | None = None) -> str | None:
    async with open_session() as session:
        return await warm_up(session, url, dialect=VLLM, served_model="fake", api_key=api_key)


async def test_one_small_request_is_enough() -> None:
    async with FakeEngine(api_key="secret") as engine:
        assert await warmed(engine.url, api_key="secret") is None
        [request] = engine.requests

    assert request.path == "/v1/completions"
    assert request.json["max_tokens"] == 1


async def test_what_an_engine_does_not_offer_is_asked_for_in_another_way() -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(status=404))
        assert await warmed(engine.url) is None

        assert [request.path for request in engine.requests] == ["/v1/completions", "/v1/chat/completions"]


async def test_an_engine_that_fails_is_not_warm() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=500)
        said = await warmed(engine.url)

    assert said is not None
    assert said.startswith("its first request was answered with 500")


async def test_an_engine_that_is_not_there_is_not_warm() -> None:
    assert await warmed(f"http://127.0.0.1:{free_port()}") == "its first request failed: connection refused"
