"""Tests for `Batcher`: joining embedding requests, splitting responses and dividing long lists."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headgate.engines.batching.batcher import DEFAULT_LIMITS, Batcher, BatcherLimits, Batchers
from headgate.engines.batching.responses import AssembledResponse
from headgate.model.policy import BatchRules
from headgate.model.ticket import Api
from headgate.ports.engine import BatchHints, Call, EngineFault, EngineResponse
from headgate.wire.embeddings_codec import EMBEDDINGS_CODEC
from headgate.wire.request_body import RequestBody
from tests.edge.embedding_engine import EmbeddingEngine, vector

MS = 1_000_000
LATER = 60_000 * MS
RULES = BatchRules(batch_size_max=4, delay_ns_max=LATER, calls_per_request_max=2)


def a_call(given: object, *, tenant: str = "t", again: bool = False, left: int | None = None, **fields: object) -> Call:
    body = RequestBody.parse(json.dumps({"model": "m", "input": given, **fields}).encode(), Api.EMBEDDINGS)
    company = BatchHints(tenant, "interactive", is_retry=again, time_left_ns=left)
    return Call("req_1", Api.EMBEDDINGS, body, {"traceparent": "00-1"}, batch_hints=company)


def a_batcher(
    engine: EmbeddingEngine, rules: BatchRules = RULES, limits: BatcherLimits = DEFAULT_LIMITS, **ttft: int
) -> Batcher:
    return Batcher(engine, rules, ttft, limits=limits)


async def whole(answer: EngineResponse) -> dict[str, object]:
    body = bytearray()
    try:
        while data := await answer.read():
            body += data
    finally:
        answer.close()
    return {"status": answer.status} | json.loads(bytes(body) or b"{}")


async def asked(batcher: Batcher, given: object, **fields: object) -> dict[str, object]:
    return await whole(await batcher.ask(a_call(given, **fields)))


def asking(batcher: Batcher, given: object, **fields: object) -> "asyncio.Task[dict[str, object]]":
    return asyncio.create_task(asked(batcher, given, **fields))


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0)


async def busy(engine: EmbeddingEngine, batcher: Batcher) -> "asyncio.Task[dict[str, object]]":
    """Starts a call and returns while it is in flight, so that later requests wait for a batch."""
    engine.hold()
    first = asking(batcher, "first", dimensions=1)
    await until(lambda: engine.running == 1)
    return first


def vectors(answer: dict[str, object]) -> list[object]:
    data = answer["data"]
    assert isinstance(data, list)
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [entry["embedding"] for entry in data]


async def test_requests_arriving_while_the_engine_is_busy_are_joined() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    others = [asking(batcher, text) for text in ("a", "bb", ["ccc", "dddd"])]
    await until(lambda: engine.running == 2)
    engine.go()

    answers = await asyncio.gather(*others)

    assert engine.calls == [["first"], ["a", "bb", "ccc", "dddd"]]
    assert [vectors(answer) for answer in answers] == [
        [vector("a")],
        [vector("bb")],
        [vector("ccc"), vector("dddd")],
    ]
    assert [answer["model"] for answer in answers] == ["engine"] * 3
    assert (await first)["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert sum(answer["usage"]["prompt_tokens"] for answer in answers) == 3 + 4 + 5 + 6  # type: ignore[index]
    assert batcher.waiting == 0


async def test_single_request_is_sent_unchanged() -> None:
    engine = EmbeddingEngine()
    call = a_call("alone", user="ann")

    answer = await whole(await a_batcher(engine).ask(call))

    assert vectors(answer) == [vector("alone")]
    assert engine.sent == [call]


async def test_joined_call_has_its_own_id_and_no_client_headers() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    engine.go()
    await asyncio.gather(first, *others)

    assert engine.sent[1].headers == {}
    assert "req_1" not in engine.sent[1].request_id
    assert engine.sent[1].request_id.startswith("batch_")


async def test_calls_for_parts_of_one_list_have_different_ids() -> None:
    engine = EmbeddingEngine()

    await asked(a_batcher(engine), list("abcdefghij"))

    ids = [call.request_id for call in engine.sent]
    assert len(set(ids)) == len(ids) == 3
    assert all(each.startswith("req_1.") for each in ids)


async def test_maximum_delay_ends_the_batch_wait() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine, BatchRules(delay_ns_max=1 * MS))
    first = await busy(engine, batcher)
    others = [asking(batcher, text) for text in "ab"]
    await until(lambda: engine.running == 2)
    engine.go()
    await asyncio.gather(first, *others)

    assert engine.calls[1] == ["a", "b"]


@pytest.mark.parametrize("budget", [{"ttft": 1 * MS}, {"left": 1 * MS}], ids=["class objective", "client deadline"])
async def test_batch_wait_is_limited_to_a_fraction_of_the_time_budget(budget: dict[str, int]) -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine, interactive=budget.get("ttft", LATER))
    first = await busy(engine, batcher)
    other = asking(batcher, "a", left=budget.get("left"))
    await until(lambda: engine.running == 2)
    engine.go()
    await asyncio.gather(first, other)

    assert engine.calls[1] == ["a"]


async def test_retried_request_is_sent_alone() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    again = asking(batcher, "a", again=True)
    await until(lambda: engine.running == 2)
    engine.go()
    await asyncio.gather(first, again)

    assert engine.calls[1] == ["a"]


async def test_retried_long_list_is_divided_but_not_joined_with_others() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    other = asking(batcher, "other")
    again = asking(batcher, list("abcdef"), again=True)
    await until(lambda: engine.running == 3)
    engine.go()

    assert vectors(await again) == [vector(text) for text in "abcdef"]
    await asyncio.gather(first, other)
    assert engine.calls[1:3] == [list("abcd"), list("ef")]


@pytest.mark.parametrize("status", [400, 500])
async def test_poisoned_input_fails_only_its_own_request(status: int) -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    engine.poison["bad"] = status
    others = [asking(batcher, text, tenant=text) for text in ("a", "bad", "b", "c")]
    await until(lambda: engine.running == 2)
    engine.go()

    answers = await asyncio.gather(*others)
    await first

    assert [answer["status"] for answer in answers] == [200, status, 200, 200]
    assert [vectors(answers[at]) for at in (0, 2, 3)] == [[vector("a")], [vector("b")], [vector("c")]]
    assert answers[1]["error"] == {"message": "about ['bad']"}


async def test_busy_engine_is_not_retried_and_its_error_body_is_dropped() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    engine.poison["b"] = 503
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    engine.go()

    answers = await asyncio.gather(*others)
    await first

    assert answers == [{"status": 503}] * 4
    assert len(engine.calls) == 2


async def test_batch_error_body_is_not_sent_to_the_last_remaining_client() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    engine.poison["secret"] = 503
    others = [asking(batcher, text) for text in ("secret", "b", "c", "d")]
    await until(lambda: engine.running == 2)
    for task in others[:3]:
        task.cancel()
    await asyncio.gather(*others[:3], return_exceptions=True)
    engine.go()

    assert await others[3] == {"status": 503}
    await first


async def test_unreachable_engine_fails_all_requests_in_a_batch() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    engine.fault = "gone"
    engine.go()

    results = await asyncio.gather(first, *others, return_exceptions=True)

    assert [str(result) for result in results] == ["gone"] * 5
    assert all(isinstance(result, EngineFault) for result in results)
    assert engine.calls[1:] == [["a", "b", "c", "d"], ["a", "b"], ["c", "d"]]


async def test_batch_is_sent_one_by_one_if_its_response_cannot_be_split() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    engine.body = b'{"data":[{"index":0,"embedding":[1]}]}'
    engine.go()

    answers = await asyncio.gather(*others)
    await first

    assert [answer["data"] for answer in answers] == [[{"index": 0, "embedding": [1]}]] * 4


async def test_list_is_sent_undivided_if_its_partial_responses_cannot_be_joined() -> None:
    engine = EmbeddingEngine()
    engine.body = b'{"strange":1}'
    batcher = a_batcher(engine)

    answer = await asked(batcher, list("abcdefgh"))

    assert answer == {"status": 200, "strange": 1}
    assert engine.calls[-1] == list("abcdefgh")
    await until(lambda: not batcher._pending)
    assert (batcher._pending, batcher._calls, batcher._queue._requests) == ({}, {}, {})


async def test_disconnecting_client_cancels_its_undivided_list() -> None:
    engine = EmbeddingEngine()
    engine.body = b"{}"
    batcher = a_batcher(engine)
    engine.holding("e")
    leaver = asking(batcher, list("abcdefgh"))
    await until(lambda: len(engine.calls) == 3 and engine.running == 1)
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    await until(lambda: engine.running == 0)

    assert engine.calls == [list("abcd"), list("efgh"), list("abcdefgh")]
    assert engine.cut == 2
    assert (batcher._pending, batcher._calls, batcher._queue._requests) == ({}, {}, {})


async def test_requests_after_an_unsplittable_response_are_sent_alone() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine, limits=BatcherLimits(unbatched_requests=3))
    engine.body = b"{}"
    await asked(batcher, list("abcdefgh"))
    engine.body = None
    engine.hold()
    apart = [asking(batcher, text) for text in "abc"]
    await until(lambda: engine.running == 3)
    assert batcher._queue.calls == 0

    last = asking(batcher, "d")
    await until(lambda: engine.running == 4)
    assert batcher._queue.calls == 1
    engine.go()
    answers = await asyncio.gather(*apart, last)
    assert [vectors(answer) for answer in answers] == [[vector(text)] for text in "abcd"]


async def test_response_too_long_to_split_does_not_count_as_a_failure() -> None:
    short = replace(EMBEDDINGS_CODEC, response_bytes_max=500)
    engine = EmbeddingEngine()
    batcher = a_batcher(engine, limits=BatcherLimits(codecs={Api.EMBEDDINGS: short}))
    first = await busy(engine, batcher)
    engine.padding = 200
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    engine.go()

    answers = await asyncio.gather(*others)
    await first

    assert [vectors(answer) for answer in answers] == [[vector(text)] for text in "abcd"]
    assert sorted(map(len, engine.calls)) == [1, 1, 1, 1, 1, 4]


async def test_busy_response_earns_no_retry_credit() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    batcher._queue._credit = 0
    engine.poison["a"] = 503

    await asked(batcher, "a")
    await until(lambda: not batcher._calls)
    assert batcher._queue._credit == 0

    await asked(batcher, "b")
    await until(lambda: batcher._queue._credit > 0)


async def test_request_from_a_disconnected_client_does_not_affect_the_others() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    leaver = asking(batcher, "leaver")
    await until(lambda: batcher.waiting == 1)
    leaver.cancel()
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    others[0].cancel()
    engine.go()

    results = await asyncio.gather(*others, return_exceptions=True)
    await first

    assert engine.calls[1] == ["a", "b", "c", "d"]
    assert isinstance(results[0], asyncio.CancelledError)
    assert [vectors(result) for result in results[1:]] == [[vector(text)] for text in "bcd"]  # type: ignore[arg-type]


async def test_call_is_cancelled_when_all_its_clients_have_disconnected() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    for task in (first, *others):
        task.cancel()

    await asyncio.gather(first, *others, return_exceptions=True)
    await until(lambda: engine.running == 0)

    assert engine.cut == 2
    assert batcher.waiting == 0


@pytest.mark.parametrize("at", range(12))
async def test_cancellation_at_any_point_leaves_no_state_behind(at: int) -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    tasks = [
        asking(batcher, given, tenant=f"{number % 2}") for number, given in enumerate(["a", list("bcdefghi"), "j"])
    ]
    for _ in range(at):
        await asyncio.sleep(0)
    tasks[at % 3].cancel()

    results = await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: engine.running == 0 and batcher.waiting == 0)

    whole_ones = [result for result in results if isinstance(result, dict)]
    assert len(whole_ones) >= 2
    assert all(result["status"] == 200 for result in whole_ones)
    assert (batcher._pending, batcher._calls) == ({}, {})
    assert (batcher._queue._requests, batcher._queue._groups) == ({}, {})


async def test_long_list_is_sent_in_parts_and_returned_in_order() -> None:
    engine = EmbeddingEngine()
    texts = [f"text {number}" for number in range(18)]

    answer = await asked(a_batcher(engine), texts)

    assert vectors(answer) == [vector(text) for text in texts]
    assert [len(call) for call in engine.calls] == [4, 4, 4, 4, 2]
    assert engine.running_max == RULES.calls_per_request_max
    assert answer["usage"]["prompt_tokens"] == sum(len(json.dumps(text)) for text in texts)  # type: ignore[index]


async def test_long_list_with_one_rejected_input_is_rejected() -> None:
    engine = EmbeddingEngine()
    engine.poison["bad"] = 400

    answer = await asked(a_batcher(engine), [*"abcdefghijkl", "bad"])

    assert answer["status"] == 400


async def test_long_list_does_not_delay_other_requests() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine, BatchRules(batch_size_max=4, delay_ns_max=1 * MS, calls_per_request_max=1))
    engine.hold()
    long = asking(batcher, [f"long {number}" for number in range(20)], tenant="long")
    await until(lambda: engine.running == 1)
    short = asking(batcher, "short", tenant="short")
    await until(lambda: engine.running == 2)
    engine.go()

    assert vectors(await short) == [vector("short")]
    assert not long.done()
    assert len(vectors(await long)) == 20


async def test_buffered_bytes_stay_within_the_limit_while_the_client_is_not_reading() -> None:
    engine = EmbeddingEngine()
    engine.padding = 1_000
    texts = [f"text {number}" for number in range(200)]

    answer = await a_batcher(engine, limits=BatcherLimits(buffered_bytes_max=10_000)).ask(a_call(texts))
    for _ in range(50):
        await asyncio.sleep(0)
    unread = len(engine.calls)
    got = await whole(answer)

    assert unread <= 6
    assert vectors(got) == [vector(text) for text in texts]
    assert len(engine.calls) == 50


async def test_buffered_bytes_stay_within_the_limit_while_an_early_part_is_pending() -> None:
    engine = EmbeddingEngine()
    engine.padding = 1_000
    slow = engine.holding("text 0")
    texts = [f"text {number}" for number in range(200)]
    batcher = a_batcher(engine, limits=BatcherLimits(buffered_bytes_max=10_000))
    answer = asyncio.create_task(batcher.ask(a_call(texts)))
    for _ in range(100):
        await asyncio.sleep(0)
    unread = len(engine.calls)
    slow.set()

    assert unread <= 5
    assert vectors(await whole(await answer)) == [vector(text) for text in texts]


async def test_list_is_truncated_if_it_fails_after_its_response_has_started() -> None:
    engine = EmbeddingEngine()
    engine.padding = 1_000
    batcher = a_batcher(engine, limits=BatcherLimits(buffered_bytes_max=1_000))
    answer = await batcher.ask(a_call([*(f"text {number}" for number in range(40)), "bad"]))
    engine.poison["bad"] = 400

    assert answer.status == 200
    with pytest.raises(EngineFault, match="returned 400 for a later part"):
        await whole(answer)


async def test_usage_for_a_joined_request_is_marked_as_estimated() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    first = await busy(engine, batcher)
    calls = [asyncio.create_task(batcher.ask(a_call(text))) for text in ("a", "bbbbbb", "c", "d")]
    await until(lambda: engine.running == 2)
    engine.go()
    answers = await asyncio.gather(*calls)
    await first

    assert all(isinstance(answer, AssembledResponse) and answer.usage_estimated for answer in answers)
    for answer in answers:
        answer.close()


async def test_batch_sizes_and_waits_are_reported() -> None:
    engine = EmbeddingEngine()
    seen: list[tuple[int, int]] = []
    batcher = Batcher(engine, RULES, {}, lambda size, waits: seen.append((size, len(waits))))
    first = await busy(engine, batcher)
    others = [asking(batcher, text) for text in "abcd"]
    await until(lambda: engine.running == 2)
    engine.go()
    await asyncio.gather(first, *others)

    assert seen == [(1, 1), (4, 4)]


async def test_call_without_batch_hints_is_sent_directly() -> None:
    engine = EmbeddingEngine()
    batcher = a_batcher(engine)
    body = RequestBody.parse(b'{"model":"m","input":"x"}', Api.EMBEDDINGS)

    answer = await batcher.ask(Call("req_1", Api.EMBEDDINGS, body))

    assert (await whole(answer))["status"] == 200
    assert batcher.waiting == 0


async def test_only_pools_with_batch_rules_are_batched_and_rules_can_change() -> None:
    engines = {"a/1": EmbeddingEngine(), "b/1": EmbeddingEngine()}
    batchers = Batchers(engines, lambda *_: None)
    assert dict(batchers) == engines

    batchers.set_rules({"a": RULES}, {})
    found = batchers["a/1"]
    assert isinstance(found, Batcher)
    assert batchers["a/1"] is found
    assert batchers["b/1"] is engines["b/1"]
    with suppress(KeyError):
        assert not batchers["c/1"]

    batchers.set_rules({"a": BatchRules(batch_size_max=7)}, {})
    assert batchers["a/1"] is found
    engines["a/1"] = EmbeddingEngine()
    assert batchers["a/1"] is not found
    batchers.set_rules({}, {})
    assert batchers["a/1"] is engines["a/1"]
    assert (len(batchers), list(batchers), batchers.waiting) == (2, ["a/1", "b/1"], 0)


async def test_internal_error_is_raised_to_the_client_request() -> None:
    async def ask(_: Call) -> EngineResponse:
        raise ZeroDivisionError

    batcher = Batcher(SimpleNamespace(ask=ask), RULES, {})  # type: ignore[arg-type]

    with pytest.raises(ZeroDivisionError):
        await batcher.ask(a_call("a"))
