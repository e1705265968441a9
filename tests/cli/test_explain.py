"""Output of `headgate explain`."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
import yaml

from headgate.cli.explain import lines
from headgate.cli.output.explanation import Explanation, Step
from headgate.model.units import RequestId
from headgate.telemetry.decision_history import REJECTED_MAX, REQUESTS_MAX
from headgate.telemetry.explanation import explain
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from tests.cli.conftest import Headgate, Said
from tests.telemetry.histories import HISTORIES, ID, at, observed

# Text of each history, wrapped at 80 columns.
TEXTS = {
    "held for a cold start": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was held 20 s for
a cold start of pool main; waited 500 ms while nothing was sent to pool main
because no ready endpoint had headroom (slots, pending prefill, KV cache or time
per token); was sent to main/2 (least loaded, 3 of 8 requests in flight);
completed after 21 s.

SECONDS  EVENT                        REASON
  0.000  arrived                      chat for model m, streaming, prompt of
                                      1234 bytes
  0.000  held for pool main           no endpoint in pool main is available;
                                      held until the first endpoint in pool main
                                      starts
 20.000  queued in class interactive  meanwhile nothing was sent to pool main
                                      because no ready endpoint had headroom
                                      (slots, pending prefill, KV cache or time
                                      per token)
 20.500  sent to main/2               least loaded, 3 of 8 requests in flight
 21.000  attempt 1 completed          311 prompt and 87 output tokens
 21.000  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "completed immediately": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was sent
immediately to main/2 (least loaded, 3 of 8 requests in flight); completed after
1.25 s.

SECONDS  EVENT                REASON
  0.000  arrived              chat for model m, streaming, prompt of 1234 bytes
  0.000  sent to main/2       least loaded, 3 of 8 requests in flight
  0.318  first token
  1.250  attempt 1 completed  311 prompt and 87 output tokens
  1.250  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "first token and end reported together": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was sent
immediately to main/2 (least loaded, 3 of 8 requests in flight); completed after
400 ms.

SECONDS  EVENT                REASON
  0.000  arrived              chat for model m, non-streaming, prompt of 1234
                              bytes
  0.000  sent to main/2       least loaded, 3 of 8 requests in flight
  0.400  response begins
  0.400  attempt 1 completed  311 prompt and 87 output tokens
  0.400  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "waited, then completed": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) waited 1.2 s while
17 other requests were sent to pool main (9 from bolt, 4 from acme, 3 from coil
in class batch, 1 more); was sent to main/2 (least loaded, 3 of 8 requests in
flight); completed after 3.41 s.

SECONDS  EVENT                        REASON
  0.000  arrived                      chat for model m, streaming, prompt of
                                      1234 bytes
  0.000  queued in class interactive  meanwhile 17 other requests were sent to
                                      pool main (9 from bolt, 4 from acme, 3
                                      from coil in class batch, 1 more)
  1.200  sent to main/2               least loaded, 3 of 8 requests in flight;
                                      score 11.90 ms: pending prefill 1.50 ms,
                                      own prefill 30.40 ms, prefix hit -20.00 ms
  1.520  first token
  3.410  attempt 1 completed          311 prompt and 87 output tokens
  3.410  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "streamed internally, retried and delivered complete": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was sent
immediately to main/1 (least loaded, 3 of 8 requests in flight); attempt 1
failed (the stream was truncated); was sent to main/2 (least loaded, 3 of 8
requests in flight); completed after 2.1 s.

SECONDS  EVENT                      REASON
  0.000  arrived                    chat for model m, non-streaming, prompt of
                                    1234 bytes
  0.000  sent to main/1             least loaded, 3 of 8 requests in flight
  0.200  first token
  0.400  attempt 1 failed           the stream was truncated
  0.400  sent to main/2, attempt 2  least loaded, 3 of 8 requests in flight
  0.900  first token                of attempt 2
  2.100  response begins            of attempt 2
  2.100  attempt 2 completed        311 prompt and 87 output tokens
  2.100  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "retried after a failure": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was sent
immediately to main/1 (least loaded, 3 of 8 requests in flight); attempt 1
failed (connection refused); was sent to main/2 (least loaded, 3 of 8 requests
in flight); completed after 2.1 s.

SECONDS  EVENT                      REASON
  0.000  arrived                    chat for model m, streaming, prompt of 1234
                                    bytes
  0.000  sent to main/1             least loaded, 3 of 8 requests in flight
  0.400  attempt 1 failed           connection refused
  0.400  main/1 ejected for 10 s    connection refused
  0.400  sent to main/2, attempt 2  least loaded, 3 of 8 requests in flight
  0.900  first token                of attempt 2
  2.100  attempt 2 completed
  2.100  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "degraded": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was sent
immediately to main/2 (least loaded, 3 of 8 requests in flight); was degraded to
level 2 (limited to output_tokens=256 instead of 1024, reasoning_effort=low);
completed after 700 ms.

SECONDS  EVENT                REASON
  0.000  arrived              chat for model m, streaming, prompt of 1234 bytes,
                              4 choices, at most 1024 output tokens
  0.000  sent to main/2       least loaded, 3 of 8 requests in flight; degraded
                              to level 2, limited to output_tokens=256 instead
                              of 1024, reasoning_effort=low
  0.700  attempt 1 completed
  0.700  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "rejected by a rate limit": """\
req_0123456789abcdef01234567 (tenant acme, class batch) was rejected on arrival
with rate_limited: tenant "acme" has reached its limit of 60 requests per
minute; retry in 12 s or raise requests_per_minute; Retry-After 12 s.

SECONDS  EVENT                REASON
  0.000  arrived              chat for model m, streaming, prompt of 1234 bytes,
                              service_tier "flex", client retry 1
  0.000  ended: rate_limited  tenant "acme" has reached its limit of 60 requests
                              per minute; retry in 12 s or raise
                              requests_per_minute; Retry-After 12 s

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "expired": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) waited 30 s while
2 other requests were sent for model m (2 from bolt); ended after 30 s with
queue_timeout: waited 30 s, the maximum in class "interactive"; Retry-After 4 s.

SECONDS  EVENT                        REASON
  0.000  arrived                      chat for model m, streaming, prompt of
                                      1234 bytes, class "interactive"
  0.000  queued in class interactive  meanwhile 2 other requests were sent for
                                      model m (2 from bolt)
 12.000  policy changed               configuration 0123abcd took effect
 30.000  ended: queue_timeout         waited 30 s, the maximum in class
                                      "interactive"; Retry-After 4 s

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "cancelled": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was sent
immediately to main/2 (least loaded, 3 of 8 requests in flight); was cancelled
after 812 ms (the client disconnected).

SECONDS  EVENT              REASON
  0.000  arrived            chat for model m, streaming, prompt of 1234 bytes,
                            first token within 2 s, complete response within
                            20 s
  0.000  sent to main/2     least loaded, 3 of 8 requests in flight
  0.812  attempt 1 aborted  client_left
  0.812  ended: cancelled   the client disconnected
  0.815  attempt 1 stopped  client_left

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
    "hedged": """\
req_0123456789abcdef01234567 (tenant acme, class interactive) was sent
immediately to main/1 (least loaded, 3 of 8 requests in flight); was hedged to
main/2 (main/1 has been silent for 0.6 s); attempt 1 was aborted (attempt 2
responded first); completed after 1.7 s.

SECONDS  EVENT                        REASON
  0.000  arrived                      chat for model m, streaming, prompt of
                                      1234 bytes
  0.000  sent to main/1               least loaded, 3 of 8 requests in flight
  0.600  hedged to main/2, attempt 2  main/1 has been silent for 0.6 s
  0.900  first token                  of attempt 2
  0.900  attempt 1 aborted            attempt 2 responded first
  0.902  attempt 1 stopped            attempt 2 responded first
  1.700  attempt 2 completed          311 prompt and 87 output tokens
  1.700  ended: completed

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00.""",
}


def read(name: str) -> Explanation:
    """History as the command line decodes it from the page."""
    picture = observed(HISTORIES[name]).snapshot(RequestId(ID))
    assert picture is not None
    return msgspec.json.decode(msgspec.json.encode(explain(picture, at(60))), type=Explanation)


def test_every_history_has_an_expected_text() -> None:
    assert TEXTS.keys() == HISTORIES.keys()


@pytest.mark.parametrize("name", HISTORIES)
def test_explanation_consists_of_a_summary_and_steps(name: str) -> None:
    assert "\n".join(lines(read(name), 80)) == TEXTS[name]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", HISTORIES)
def test_lines_fit_the_terminal(name: str, width: int) -> None:
    assert max(len(line) for line in lines(read(name), width)) <= width


def test_long_endpoint_name_leaves_room_for_the_reason() -> None:
    long = Step(
        0.0, "sent to main/gpu-node-17.cluster-a.example.internal:8000", "least loaded, 3 of 8 requests in flight"
    )
    told = list(lines(Explanation(ID, "acme", "m", "It went there.", "2026-01-01", (long,)), 80))

    assert told[2:-2] == [
        "SECONDS  EVENT                           REASON",
        "  0.000  sent to main/gpu-node-17.clust  least loaded, 3 of 8 requests in flight",
        "         er-a.example.internal:8000",
    ]


def test_control_characters_are_escaped() -> None:
    named = "\x1b]0;owned\x07 \x9b2J\r\n"
    evil = Explanation(ID, "acme", "m", f"summary {named}", f"{named}", (Step(0.0, f"what {named}", f"why {named}"),))

    assert [letter for line in lines(evil) for letter in line if not letter.isprintable()] == []


# With a gateway


async def asked(headgate: Headgate, *arguments: str) -> Said:
    return await asyncio.to_thread(headgate, "explain", *arguments)


async def test_request_is_explained_by_its_id(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat()) as answer:
            request_id = answer.headers["x-request-id"]
        by_file = await asked(headgate, request_id)
        by_address = await asked(headgate, request_id, "--url", gateway.admin_url, "--json")

    endpoint = f"small/{engine.url.removeprefix('http://')}"
    assert (by_file.code, by_file.err) == (0, "")
    told = " ".join(by_file.out.split())
    assert told.startswith(f"{request_id} (tenant laptop, class interactive) was sent immediately to {endpoint} (")
    assert "ended: completed" in by_file.out
    assert (by_address.code, by_address.err) == (0, "")
    assert json.loads(by_address.out)["outcome"] == "completed"


async def test_waiting_request_is_explained(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, in_flight_max=1), tmp_path) as gateway:
        engine.behaviour = Behaviour(hang_before_head=True)
        first = asyncio.create_task(gateway.post(chat()).__aenter__())
        held = await engine.next_request()
        second = asyncio.create_task(gateway.post(chat()).__aenter__())
        await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)
        running, waiting = gateway.gateway._observability.decisions._admitted
        at_engine = await asked(headgate, running.request_id)
        queued = await asked(headgate, waiting.request_id)
        engine.behaviour = Behaviour()
        held.resume.set()
        await asyncio.gather(first, second)
        afterwards = await asked(headgate, waiting.request_id)

    assert "(no token has arrived)." in " ".join(at_engine.out.split())
    assert "so far while nothing was sent for model m" in " ".join(queued.out.split())
    assert "while nothing was sent to pool small" in " ".join(afterwards.out.split())
    assert afterwards.out.count("ended: completed") == 1


async def test_unknown_id_is_reported_with_next_step(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path):
        said = await asked(headgate, "req_of_yesterday")

    assert said == Said(
        1,
        "",
        "headgate: request req_of_yesterday is unknown; check the x-request-id of the response. This gateway keeps the "
        f"last {REQUESTS_MAX} requests and the last {REJECTED_MAX} rejected on arrival. Configure `records` to keep "
        "more, and to keep them across restarts.\n",
    )


def test_missing_gateway_is_reported_with_next_step(headgate: Headgate, file: Path) -> None:
    config = a_config("http://127.0.0.1:1")
    file.write_text(yaml.safe_dump(config))

    assert headgate("explain", ID) == Said(
        1,
        "",
        f"headgate: no gateway is responding at http://{config['admin_listen']}: GET /explain/{ID} failed: connection "
        "refused; start one with `headgate serve`, or specify its admin listener with --url\n",
    )


async def test_non_headgate_server_is_reported(headgate: Headgate) -> None:
    async with FakeEngine() as engine:
        said = await asked(headgate, ID, "--url", engine.url)

    assert said.code == 1
    assert said.err.startswith(f"headgate: the server at {engine.url} cannot explain requests; ")


@pytest.mark.parametrize("request_id", ["", "../status", "x-request-id: req_1", "req_1\n", "a" * 129])
def test_invalid_request_id_is_rejected(headgate: Headgate, request_id: str) -> None:
    said = headgate("explain", request_id)

    assert (said.code, said.out) == (2, "")
    assert said.err.endswith("is not a request id; use the x-request-id header of the response, such as req_0123abcd\n")
