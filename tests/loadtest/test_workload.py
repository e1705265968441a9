"""Tests for workload files: sources, clients, APIs, prefixes and sessions."""

from pathlib import Path
from textwrap import dedent

import pytest

from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.workload import parse_workload
from headgate.loadtest.answer_text import answer_text
from headgate.loadtest.comparison import RequestSample
from headgate.loadtest.load_test import LoadTest
from headgate.loadtest.options import LOADTEST_APIS, LoadTestWorkload
from headgate.loadtest.request_bodies import PATHS
from headgate.loadtest.table import render
from headgate.loadtest.workload import WorkloadSenders, workload_schedule
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Api
from headgate.model.units import SECOND, ClassName, Instant, TenantId
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.traffic import arrivals
from testing.fake_engine import Behaviour, FakeEngine
from tests.loadtest.builders import Ran, a_plan, ran
from tests.loadtest.command import loadtest, served

TWO_SOURCES = """
    duration: 20s
    tenants:
      acme: {key: "${ACME_KEY}"}
    callers:
      interactive: {ttft: 2s, client_timeout: 30s, retries: 1}
    traffic:
      - rate: 20
        classes: interactive
        tenants: {acme: 3, zeta: 1}
        prompt: 200:800
        output: {median: 100, p95: 400, max: 1000}
      - rate: 5
        api: embeddings
        prompt: 400
        burstiness: 0
"""


def workload_of(text: str) -> LoadTestWorkload:
    return parse_workload(dedent(text), Path("load.yaml"), {"ACME_KEY": "sk-acme"})


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        workload_of(text)
    return [str(problem).removeprefix("load.yaml:") for problem in caught.value.problems]


async def sent(text: str, url: str, **fields: object) -> Ran:
    schedule, senders = workload_schedule(workload_of(text), seed=0)
    return await ran(a_plan(url, schedule, senders=senders, **fields))


def test_workload_has_the_same_arrivals_as_a_simulated_scenario() -> None:
    workload = workload_of(TWO_SOURCES)
    schedule, senders = workload_schedule(workload, seed=3)
    simulated = list(arrivals([source.traffic for source in workload.sources], seed=3))

    assert list(schedule.at_ns) == [each.at for each in simulated]
    assert list(schedule.prompt_tokens) == [each.prompt_tokens for each in simulated]
    assert schedule.length_ns == 20 * SECOND
    assert {(each.class_label, each.tenant_label, each.api, each.key) for each in senders} == {
        ("interactive", "acme", "chat", "sk-acme"),
        ("interactive", "zeta", "chat", None),
        ("unnamed", "everyone", "embeddings", None),
    }


def test_limit_and_duration_shorten_a_workload() -> None:
    workload = workload_of(TWO_SOURCES)
    schedule, _ = workload_schedule(workload, seed=0, limit=10)
    shorter, _ = workload_schedule(workload, seed=0, duration_s=2.0)

    assert len(schedule) == 10
    assert schedule.length_ns == schedule.at_ns[-1]
    assert shorter.length_ns == 2 * SECOND
    assert shorter.at_ns[-1] < 2 * SECOND


def test_tenants_beyond_the_limit_are_reported_as_one() -> None:
    workload = workload_of("traffic: [{rate: 1, duration: 1s, prompt: 1, output: 1}]")
    senders = WorkloadSenders(workload, default_key="sk", senders_max=2)
    numbers = [senders.index_for(0, Arrival(Instant(0), 1, 1, ClassName("batch"), TenantId(name))) for name in "abcda"]

    assert numbers == [0, 1, 2, 2, 0]
    assert [each.tenant_label for each in senders.senders] == ["a", "b", "other"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "traffic: [{rate: 5, duration: 9s, api: chatt, prompt: 1, output: 1}]",
            '1: traffic[0].api: API "chatt" does not exist; did you mean "chat"?',
        ),
        (
            "traffic: [{rate: 5, duration: 9s, api: embeddings, prompt: 1, sessions: {turns: 3}}]",
            (
                "1: traffic[0].sessions: has no effect with embeddings, only with "
                "chat, completions, responses, messages; remove it"
            ),
        ),
        (
            "traffic: [{rate: 5, duration: 9s, prompt: 1, output: 1, tenants: acme}]\ntenants: {acmee: {key: x}}",
            '2: tenants.acmee: sends no requests; did you mean "acme"?',
        ),
        ("traffic: []", "1: traffic: has no entries; list at least one source of requests"),
    ],
)
def test_problems_of_a_workload_file(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


def test_sessions_need_a_rate(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at_s,prompt_tokens,output_tokens\n0,1,1\n")
    text = f"traffic: [{{trace: {tmp_path / 't.csv'}, classes: a, sessions: {{turns: 2}}}}]"

    assert problems_of(text) == ["1: traffic[0].sessions: has no effect without rate; remove it"]


# ------------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize("api", LOADTEST_APIS)
async def test_each_api_has_its_path_and_completes(api: Api) -> None:
    text = f"traffic: [{{rate: 100, duration: 20ms, burstiness: 0, api: {api}, prompt: 10, output: 3}}]"
    async with FakeEngine() as engine:
        ran_ = await sent(text, engine.url)
        received = [*engine.requests, *engine.probes]

    assert ran_.line["outcome"] == "completed"
    assert ran_.line["api"] == api
    assert ran_.line["output_tokens"] == (0 if api in APIS_WITHOUT_OUTPUT else 3)
    assert [each.path for each in received] == [PATHS[api]]


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize("stream", ["true", "false"])
async def test_each_turn_repeats_the_conversation_with_the_responses(api: str, stream: str) -> None:
    text = f"""
        callers: {{a: {{stream: {stream}}}}}
        traffic:
          - {{rate: 10, duration: 150ms, burstiness: 0, classes: a, api: {api}, prompt: 10, output: 2,
             sessions: {{turns: 3, think_time: 1ms}}}}
    """
    async with FakeEngine() as engine:
        ran_ = await sent(text, engine.url)
        bodies = [each.json for each in engine.requests]

    assert [(line["session"], line["turn"], line["outcome"]) for line in ran_.lines] == [
        (0, turn, "completed") for turn in range(3)
    ]
    sizes = [line["prompt_tokens_requested"] for line in ran_.lines]
    assert sizes[0] == 10
    assert sizes[2] > sizes[1] > 20
    if api == "completions":
        assert str(bodies[2]["prompt"]).startswith(str(bodies[1]["prompt"]))
    else:
        name = "input" if api == "responses" else "messages"
        first, last = bodies[0][name], bodies[2][name]
        assert [each["role"] for each in last] == ["user", "assistant"] * 2 + ["user"]
        assert last[0] == first[0]
        assert last[1]["content"]
    assert ran_.data["total"]["offered"] == 3


async def test_failed_turn_ends_its_session() -> None:
    text = """
        traffic:
          - {rate: 10, duration: 150ms, burstiness: 0, prompt: 10, output: 2, sessions: {turns: 3, think_time: 1ms}}
    """
    async with FakeEngine() as engine:
        engine.script.append(Behaviour())
        engine.behaviour = Behaviour(status=400)
        ran_ = await sent(text, engine.url)

    assert [line["outcome"] for line in ran_.lines] == ["completed", "http_error"]


async def test_turn_that_is_not_due_when_the_run_stops_does_not_count() -> None:
    text = """
        traffic:
          - {rate: 10, duration: 1h, burstiness: 0, prompt: 10, output: 2, sessions: {turns: 9, think_time: 5m}}
    """
    schedule, senders = workload_schedule(workload_of(text), seed=0, limit=1)
    schedule.length_ns = 3_600 * SECOND
    async with FakeEngine() as engine:
        samples = list[RequestSample]()

        def stop(sample: RequestSample) -> None:
            samples.append(sample)
            test.stop()

        test = LoadTest(a_plan(engine.url, schedule, senders=senders), on_sample=stop)
        result = await test.run()

    assert len(samples) == result.total.offered == result.counts.started == 1


async def test_turn_due_after_the_schedule_is_not_sent() -> None:
    text = """
        traffic:
          - {rate: 10, duration: 150ms, burstiness: 0, prompt: 10, output: 2, sessions: {turns: 3, think_time: 1h}}
    """
    async with FakeEngine() as engine:
        ran_ = await sent(text, engine.url)

    assert len(ran_.lines) == 1


async def test_requests_share_as_many_prefixes_as_configured() -> None:
    text = """
        traffic:
          - {rate: 100, duration: 205ms, burstiness: 0, prompt: 40, output: 1, prefix: {tokens: 20, prompts: 3}}
    """
    async with FakeEngine() as engine:
        await sent(text, engine.url)
        prompts = [each.json["messages"][0]["content"] for each in engine.requests]

    assert len({prompt[:80] for prompt in prompts}) == 3
    assert len({prompt[:100] for prompt in prompts}) == 20
    assert {len(prompt) for prompt in prompts} == {160}


async def test_class_has_its_own_retries_and_targets() -> None:
    text = """
        callers: {a: {retries: 0, e2e: 1ms}, b: {retries: 1, e2e: 1h}}
        traffic:
          - {rate: 10, duration: 150ms, burstiness: 0, classes: a, prompt: 10, output: 2}
          - {rate: 10, duration: 150ms, burstiness: 0, classes: b, prompt: 10, output: 2}
    """
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=503, headers=(("retry-after-ms", "1"),))
        failed = await sent(text, engine.url)
        engine.behaviour = Behaviour(pace_s=0.002)
        completed = await sent(text, engine.url)

    assert completed.data["slo_by_class"]["a"] == {"ttft_s": None, "tpot_s": None, "e2e_s": 0.001}
    assert "; good: a E2E ≤ 1 ms; b E2E ≤" in render(completed.result, width=100)
    assert [(line["class"], line["retries"]) for line in failed.lines] == [("a", 0), ("b", 1)]
    assert {name: group["good"] for name, group in completed.data["classes"].items()} == {"a": 0, "b": 1}


def test_text_of_a_malformed_response_is_empty() -> None:
    assert answer_text(Api.CHAT, b"data: {\n\ndata: [DONE]\n\n") == b""


def test_command_sends_a_workload_file(tmp_path: Path) -> None:
    path = tmp_path / "load.yaml"
    path.write_text("traffic: [{rate: 50, duration: 100ms, burstiness: 0, prompt: 10, output: 2}]")
    with served(FakeEngine()) as engine:
        said = loadtest(engine.url, "--workload", str(path), "--json")

    assert (said.code, said.json["total"]["completed"]) == (0, 4)


def test_command_reports_all_problems_of_a_workload_file(tmp_path: Path) -> None:
    path = tmp_path / "load.yaml"
    path.write_text("traffic: [{rate: 50, duration: 100ms, prompt: 10, outputt: 2}]")
    said = loadtest("http://127.0.0.1:1", "--workload", str(path))

    assert said.code == 2
    assert f"{path}:1: traffic[0].outputt: " in said.err


def test_options_that_a_workload_replaces_are_rejected(tmp_path: Path) -> None:
    said = loadtest("http://127.0.0.1:1", "--workload", str(tmp_path / "x"), "--mix", "class=a")

    assert (said.code, said.err) == (
        2,
        "headgate loadtest: --mix has no effect with --workload; set it in the file\n",
    )
