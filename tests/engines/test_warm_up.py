"""Warm-up requests to a new engine, and how they can fail."""

from headgate.engines.dialects import DIALECTS
from headgate.engines.page import open_session
from headgate.engines.warm_up import warm_up
from testing.fake_engine import Behaviour, FakeEngine
from testing.ports import free_port

VLLM = DIALECTS["vllm"]


async def warmed(url: str, *, api_key: str | None = None) -> str | None:
    async with open_session() as session:
        return await warm_up(session, url, dialect=VLLM, served_model="fake", api_key=api_key)


async def test_warm_up_sends_one_small_request() -> None:
    async with FakeEngine(api_key="secret") as engine:
        assert await warmed(engine.url, api_key="secret") is None
        [request] = engine.requests

    assert request.path == "/v1/completions"
    assert request.json["max_tokens"] == 1


async def test_warm_up_falls_back_to_chat_if_completions_are_missing() -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(status=404))
        assert await warmed(engine.url) is None

        assert [request.path for request in engine.requests] == ["/v1/completions", "/v1/chat/completions"]


async def test_warm_up_reports_an_error_status() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=500)
        said = await warmed(engine.url)

    assert said is not None
    assert said.startswith("the warm-up request failed with status 500")


async def test_warm_up_reports_a_refused_connection() -> None:
    assert await warmed(f"http://127.0.0.1:{free_port()}") == "the warm-up request failed: connection refused"


async def test_message_about_a_failed_warm_up_does_not_contain_the_key() -> None:
    async with FakeEngine(api_key="canary-key") as engine:
        engine.behaviour = Behaviour(status=500, error="no luck with canary-key")
        said = "the warm-up request failed with status 500: no luck with ***"
        assert await warmed(engine.url, api_key="canary-key") == said
