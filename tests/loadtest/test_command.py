"""Tests for the `headgate loadtest` command: options, output and exit codes."""

import json
import re
import signal
from pathlib import Path

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from tests.loadtest.command import ended, loadtest, served, start
from tests.loadtest.scripted import ScriptedServer, answer

SHORT = ("--rate", "100", "--duration", "0.25")


def test_command_prints_a_table_by_default() -> None:
    with served(FakeEngine()) as engine:
        said = loadtest(engine.url, *SHORT, "--seed", "1")
        sent = len(engine.requests)

    # On a busy machine the generator can fall behind. The command must warn then, and only then.
    assert said.code == (1 if "WARNING" in said.out else 0)
    assert ("WARNING" in said.err) == ("WARNING" in said.out)
    shape = re.sub(r"[\d.]+ (ms|s)\b", "T", re.sub(r" +", " ", said.out)).splitlines()
    assert shape[1] == f"{sent} requests in T ({4 * sent}/s)"
    assert shape[3] == "requests offered completed http_error goodput/s tokens/s retries"
    assert shape[4].startswith(f"all {sent} {sent} 0 {4 * sent} ")
    assert shape[6:10] == [
        "latency p50 p90 p95 p99 max",
        *(f"{kind} T T T T T" for kind in ("all TTFT", " TPOT", " E2E")),
    ]
    assert shape[11].startswith("generator: start delay p50 T, p99 T, max T; ")


def test_same_seed_sends_the_same_requests() -> None:
    with served(FakeEngine()) as engine:
        loadtest(engine.url, *SHORT, "--seed", "3")
        first = sorted(request.raw for request in engine.requests)
        engine.requests.clear()
        loadtest(engine.url, *SHORT, "--seed", "3")

        assert sorted(request.raw for request in engine.requests) == first


def test_mix_is_reported_by_class_and_tenant() -> None:
    mix = ("--mix", "class=interactive,tenant=acme,share=3,key=env:ACME", "--mix", "class=batch,tenant=zeta,output=2")
    with served(FakeEngine()) as engine:
        said = loadtest(engine.url, *SHORT, *mix, "--json", ACME="sk-acme")
        by_class = {"interactive": 0, "batch": 0}
        for request in engine.requests:
            by_class[request.headers["x-headgate-class"]] += 1
            assert ("authorization" in request.headers) == (request.headers["x-headgate-class"] == "interactive")

    assert {name: group["offered"] for name, group in said.json["classes"].items()} == by_class
    assert said.json["tenants"].keys() == {"acme", "zeta"}
    assert said.json["classes"]["batch"]["output_tokens"] == 2 * by_class["batch"]
    assert "sk-acme" not in said.out + said.err


def test_speed_up_replays_the_trace_faster(tmp_path: Path) -> None:
    trace, record = tmp_path / "trace.csv", tmp_path / "record.jsonl"
    trace.write_text("at_s,prompt_tokens,output_tokens,class\n100,5,3,a\n101,6,2,b\n104,7,1,b\n")
    with served(FakeEngine()) as engine:
        said = loadtest(engine.url, "--trace", str(trace), "--speed-up", "10", "--record", str(record), "--json")

    lines = sorted(map(json.loads, record.read_text().splitlines()), key=lambda line: line["number"])
    assert [(line["scheduled_s"], line["class"], line["output_tokens"]) for line in lines] == [
        (0.0, "a", 3),
        (0.1, "b", 2),
        (0.4, "b", 1),
    ]
    assert said.json["schedule_s"] == 0.4
    assert said.json["classes"]["b"]["completed"] == 2


def test_recorded_trace_names_the_models_and_leaves_out_what_cannot_be_sent(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        '{"headgate_trace":1}',
        '{"at_us":0,"prompt_tokens":5,"output_tokens":2,"model":"fake","stream":false}',
        '{"at_us":0,"prompt_tokens":5,"output_tokens":2,"model":"fake","retries":1}',
        '{"at_us":0,"prompt_tokens":5,"model":"fake","api":"embeddings"}',
    ]
    trace.write_text("\n".join(lines))
    with served(FakeEngine()) as engine:
        said = loadtest(engine.url, "--trace", str(trace), "--json", model=None)
        [request] = engine.requests
        again = loadtest(engine.url, "--trace", str(trace), "--retries", "0", "--json", model="other")

    assert (request.json["model"], "stream" in request.json, said.json["model"]) == ("fake", False, "fake")
    assert "left out 1 of 3 requests in the trace: APIs other than chats are not sent" in said.err
    assert "left out 1 of 3 requests in the trace: retries are not sent" in said.err
    assert again.json["total"]["offered"] == 2


def test_model_is_required_unless_the_trace_has_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"headgate_trace":1}\n{"at_us":0,"prompt_tokens":5}')
    said = loadtest("http://127.0.0.1:9", "--rate", "1", model=None)
    assert (said.code, said.err) == (2, "headgate loadtest: --model is missing; set it to the model to test\n")
    said = loadtest("http://127.0.0.1:9", "--trace", str(trace), model=None)
    assert (said.code, "has requests without a model; specify one" in said.err) == (2, True)


def test_goodput_counts_only_requests_that_meet_the_targets() -> None:
    with served(FakeEngine()) as engine:
        engine.behaviour = Behaviour(tokens=2, pace_s=0.02)
        said = loadtest(engine.url, *SHORT, "--slo-ttft", "0.01", "--json")

    total = said.json["total"]
    assert total["completed"] == total["offered"]
    assert (total["good"], total["goodput_per_s"]) == (0, 0.0)


def test_command_exits_with_code_one_if_no_request_completed() -> None:
    with served(ScriptedServer(answer(404, code="model_not_found"))) as server:
        said = loadtest(server.url, *SHORT)

    assert said.code == 1
    assert "\nhttp_error: model_not_found " in said.out


def test_command_warns_and_exits_with_code_one_if_the_generator_fell_behind() -> None:
    with served(FakeEngine()) as engine:
        engine.behaviour = Behaviour(tokens=1, pace_s=0.05)
        said = loadtest(engine.url, *SHORT, "--connections-max", "1", "--json")

    assert said.code == 1
    assert said.json["generator"]["behind"] is True
    assert "WARNING: " in said.err
    assert "raise --connections-max" in said.err


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_run_still_prints_its_report(number: signal.Signals) -> None:
    async with FakeEngine() as engine:
        process = await start("--url", engine.url, "--model", "fake", "--rate", "20", "--duration", "3600", "--json")
        for _ in range(3):
            await engine.next_request()
        process.send_signal(number)
        said = await ended(process)

    assert said.code == 1
    assert said.json["stopped_early"] is True
    assert said.json["total"]["offered"] >= 3


def test_unreachable_engine_is_reported_as_connection_refused() -> None:
    said = loadtest("http://127.0.0.1:9", *SHORT, "--retries", "0", "--json")

    assert (said.code, said.json["total"]["completed"]) == (1, 0)
    assert said.json["total"]["connection_failed_by_code"].keys() == {"connection_refused"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one of the arguments --rate --trace --workload --compare is required"),
        (("--rate", "1", "--trace", "x"), "not allowed with argument"),
        (("--rate", "0"), "must be above 0 and at most 1e+09, not 0"),
        (("--rate", "1", "--duration", "1e300"), "must be above 0 and at most 1e+09, not 1e300"),
        (("--rate", "1", "--sweep", "1,,2"), 'expected a number, such as 1.5, not ""'),
        (("--rate", "1", "--limit", "0"), "must be at least 1, not 0"),
        (("--rate", "1", "--mix", "klass=a"), 'headgate loadtest: --mix: "klass=a" is invalid'),
        (("--rate", "1", "--api-key", "env:NO_SUCH_KEY"), "environment variable NO_SUCH_KEY is not set"),
        (("--rate", "1", "--duration", "0.000001"), "the schedule has no requests; raise --rate or --duration"),
        (("--trace", "none.csv"), "none.csv cannot be read: No such file"),
        (("--rate", "1", "--record", "no/such/folder"), "no/such/folder: No such file or directory"),
        (("--trace", "a.csv", "--record", "./a.csv"), "--trace and --record are the same file; specify another one"),
    ],
)
def test_invalid_command_line_exits_with_code_two_and_a_message(arguments: tuple[str, ...], message: str) -> None:
    said = loadtest("http://127.0.0.1:9", *arguments)

    assert (said.code, said.out) == (2, "")
    assert message in said.err
