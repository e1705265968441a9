"""`headgate calibrate`: a live engine, hostile answers, and comparisons."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.config.engine_profiles import profile_text, read_profile
from headgate.model.engine_profile import TINY
from testing.fake_engine import Behaviour, FakeEngine
from testing.simulated_engines import simulated_engines
from tests.cli.conftest import Headgate
from tests.loadtest.command import served

LIMITS = ("--context-tokens", "512", "--sequences-max", "8", "--kv-tokens", "4096", "--chunk-tokens", "512")
SCENARIO = """\
pools:
  small:
    engines: [{profile: tiny, count: 2}]
    in_flight_max: 16
callers:
  interactive: {ttft: 500ms}
traffic:
  - {rate: 20, duration: 20s, prompt: 100:400, output: 10:60, classes: interactive}
"""


@pytest.mark.timing
@pytest.mark.process
def test_live_engine_is_measured_and_its_profile_can_be_simulated(headgate: Headgate, tmp_path: Path) -> None:
    known = replace(TINY, name="known", step_ps=4_000_000_000, prefill_token_ps=40_000_000, sequences_max=16)
    (tmp_path / "known.yaml").write_text(profile_text(known))
    with simulated_engines(1, "--profile", str(tmp_path / "known.yaml"), model="m") as [url]:
        said = headgate(
            *("calibrate", "--url", url, "--model", "m", "--seconds", "10", "--out", "mine.yaml", "--json"),
            *("--sequences-max", "16", "--concurrency-max", "16"),
        )

    page = json.loads(said.out)
    # The figures depend on how busy the machine is, so only their magnitude is checked.
    assert page["profile"]["step_ps"] == pytest.approx(known.step_ps, rel=0.5)
    assert page["sources"] == {
        "context_tokens": "reported",
        "sequences_max": "option",
        "kv_tokens": "reported",
        "chunk_tokens": "fitted",
        "block_tokens": "assumed",
    }
    assert list(page["unseen"]["errors"]) == ["ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p50", "e2e_p95"]
    assert page["unseen"]["repeat_errors"].keys() == page["unseen"]["errors"].keys()
    assert said.code == (1 if page["warnings"] else 0)
    assert "wrote mine.yaml" in said.err
    profile = read_profile(tmp_path / "mine.yaml")
    assert (profile.name, profile.step_ps) == ("mine", page["profile"]["step_ps"])
    assert "Prediction of an unseen mixed load" in (tmp_path / "mine.yaml").read_text()
    (tmp_path / "scenario.yaml").write_text(SCENARIO.replace("tiny", "mine.yaml"))
    assert headgate("simulate", "scenario.yaml", "--quiet").code == 0


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        (Behaviour(usage=None), 1, "the engine does not report token usage in streams"),
        (Behaviour(tokens=0), 1, "check that the model generates text"),
        (Behaviour(status=500), 1, "the engine rejected a request with status 500"),
        (Behaviour(status=401), 1, "the engine rejected the API key (401); set --api-key"),
        (Behaviour(cut_after=1), 1, "the engine interrupted a response"),
    ],
)
def test_hostile_answers_give_the_next_step(headgate: Headgate, behaviour: Behaviour, code: int, said: str) -> None:
    with served(FakeEngine()) as engine:
        engine.behaviour = behaviour
        ended = headgate("calibrate", "--url", engine.url, "--model", "fake", *LIMITS)

    assert ended.code == code
    assert ended.out == ""
    assert said in ended.err


def test_implausible_token_counts_are_rejected(headgate: Headgate) -> None:
    with served(FakeEngine()) as engine:
        ended = headgate("calibrate", "--url", engine.url, "--model", "fake", *LIMITS, "--context-tokens", "8")

    assert ended.code == 1
    assert "the engine reports 7 prompt and 8 output tokens, more than its context of 8" in ended.err


def test_engine_that_rejects_ignore_eos_is_asked_without_it(headgate: Headgate) -> None:
    with served(FakeEngine()) as engine:
        engine.script += [Behaviour(status=400), Behaviour(tokens=8), Behaviour(status=500)]
        ended = headgate("calibrate", "--url", engine.url, "--model", "fake", *LIMITS)
        bodies = [json.loads(each.raw) for each in engine.requests]

    assert [each.get("ignore_eos") for each in bodies] == [True, None, None]
    assert "status 500" in ended.err


def test_engine_without_completions_gets_chat_requests(headgate: Headgate) -> None:
    with served(FakeEngine()) as engine:
        engine.script += [Behaviour(status=404), Behaviour(tokens=8), Behaviour(status=500)]
        ended = headgate("calibrate", "--url", engine.url, "--model", "fake", *LIMITS)
        paths = [each.path for each in engine.requests]

    assert paths == ["/v1/completions", "/v1/chat/completions", "/v1/chat/completions"]
    assert "status 500" in ended.err


def test_missing_model_and_limits_are_reported_before_any_request(headgate: Headgate) -> None:
    with served(FakeEngine()) as engine:
        other = headgate("calibrate", "--url", engine.url, "--model", "other", *LIMITS)
        unlimited = headgate("calibrate", "--url", engine.url, "--model", "fake")
        requests = len(engine.requests)

    assert (other.code, unlimited.code, requests) == (1, 1, 0)
    assert f'{engine.url} serves fake, not "other"; correct --model' in other.err
    assert "the engine does not report its context_tokens; add --context-tokens with its value" in unlimited.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--url is missing; set the engine to measure, or compare two profiles with --compare"),
        (("--url", "http://127.0.0.1:1"), "--model is missing"),
        (("--url", "nonsense", "--model", "m"), "is not the URL of an engine"),
        (("--url", "http://127.0.0.1:1", "--model", "m", "--out", "no/file"), "use a file in an existing directory"),
        (("--compare", "tiny", "tiny"), "add --scenario FILE"),
        (("--compare", "tiny", "tiny", "--scenario", "s.yaml", "--seeds", "3"), "--seeds must be at least 6"),
        (("--compare", "tiny", "tinny", "--scenario", "s.yaml"), 'did you mean "tiny"?'),
        (("--compare", "tiny", "tiny", "--scenario", "s.yaml", "--per-hour", "C=3"), "write A=VALUE, B=VALUE or both"),
        (("--compare", "tiny", "tiny", "--scenario", "s.yaml", "--count", "A=0"), '"0" is not a positive number'),
        (("--compare", "tiny", "tiny", "--scenario", "s.yaml", "--pool", "x"), 'no pool "x"; use small'),
    ],
)
def test_invalid_arguments_are_rejected(
    headgate: Headgate, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    ended = headgate("calibrate", *arguments)

    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_unreachable_engine_is_reported(headgate: Headgate) -> None:
    ended = headgate("calibrate", "--url", "http://127.0.0.1:1", "--model", "m")

    assert ended.code == 1
    assert "start the engine or correct the address" in ended.err


def test_comparison_prefers_the_cheaper_of_two_equal_profiles(headgate: Headgate, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)

    said = headgate("calibrate", "--compare", "tiny", "tiny", "--scenario", "s.yaml", "--per-hour", "A=2", "B=1")

    assert said.code == 0
    assert "B wins: its goodput per dollar differs from A's by +100.0%" in said.out


def test_comparison_as_json_has_every_seed(headgate: Headgate, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)

    said = headgate(
        *("calibrate", "--compare", "tiny", "rtxpro6000-llama-8b", "--scenario", "s.yaml", "--json"),
        *("--per-hour", "A=1", "B=3", "--count", "B=1"),
    )

    page = json.loads(said.out)
    assert [page[side]["usd_per_hour"] for side in ("A", "B")] == [2.0, 3.0]
    assert [len(page[side]["good"]) for side in ("A", "B")] == [6, 6]
    low, ratio, high = page["ratio"]
    assert low <= ratio <= high < 1
    assert page["verdict"].startswith("A wins: ")
