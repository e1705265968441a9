"""Does `headgate explain` say why, in words that fit a terminal?"""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
import yaml

from headgate.cli.explain import lines
from headgate.cli.output.explanation import Explanation, Step
from headgate.model.units import RequestId
from headgate.telemetry.decisions import REFUSED_MAX, REQUESTS_MAX
from headgate.telemetry.explanation import explained
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from tests.cli.conftest import Headgate, Said
from tests.telemetry.histories import HISTORIES, ID, at, observed

# What people read of each history, at 80 columns.
TEXTS = {
    "held for a start": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, was held 20 s
for the first endpoint of pool main to start; waited 500 ms while nothing was
sent to pool main, where no endpoint was ready and had room; went to main/2
(least load, 3 of 8 in flight with it); completed after 21 s.

SECONDS  WHAT                         WHY
  0.000  arrived                      chat for model m, streamed, a prompt of
                                      1234 bytes
  0.000  held for pool main           no endpoint of pool main takes work; held
                                      for the first endpoint to start
 20.000  queued in class interactive  while it waited, nothing was sent to pool
                                      main, where no endpoint was ready and had
                                      room
 20.500  sent to main/2               least load, 3 of 8 in flight with it
 21.000  attempt 1 completed          311 prompt and 87 output tokens
 21.000  ended: completed

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "completed at once": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, went at once to
main/2 (least load, 3 of 8 in flight with it); completed after 1.25 s.

SECONDS  WHAT                 WHY
  0.000  arrived              chat for model m, streamed, a prompt of 1234 bytes
  0.000  sent to main/2       least load, 3 of 8 in flight with it
  0.318  first token
  1.250  attempt 1 completed  311 prompt and 87 output tokens
  1.250  ended: completed

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "waited, then completed": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, waited 1.2 s
while 17 others were sent to pool main (9 of bolt, 4 of acme, 3 of coil in
batch, 1 more); went to main/2 (least load, 3 of 8 in flight with it); completed
after 3.41 s.

SECONDS  WHAT                         WHY
  0.000  arrived                      chat for model m, streamed, a prompt of
                                      1234 bytes
  0.000  queued in class interactive  while it waited, 17 others were sent to
                                      pool main (9 of bolt, 4 of acme, 3 of coil
                                      in batch, 1 more)
  1.200  sent to main/2               least load, 3 of 8 in flight with it;
                                      score 11.90 ms: pending prefill 1.50 ms,
                                      own prefill 30.40 ms, prefix hit -20.00 ms
  1.520  first token
  3.410  attempt 1 completed          311 prompt and 87 output tokens
  3.410  ended: completed

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "streamed inside, tried again and delivered whole": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, went at once to
main/1 (least load, 3 of 8 in flight with it); attempt 1 failed (the stream
broke off); went to main/2 (least load, 3 of 8 in flight with it); completed
after 2.1 s.

SECONDS  WHAT                       WHY
  0.000  arrived                    chat for model m, not streamed, a prompt of
                                    1234 bytes
  0.000  sent to main/1             least load, 3 of 8 in flight with it
  0.200  first token
  0.400  attempt 1 failed           the stream broke off
  0.400  sent to main/2, attempt 2  least load, 3 of 8 in flight with it
  0.900  first token                of attempt 2
  2.100  the answer begins          of attempt 2
  2.100  attempt 2 completed        311 prompt and 87 output tokens
  2.100  ended: completed

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "tried again after a failure": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, went at once to
main/1 (least load, 3 of 8 in flight with it); attempt 1 failed (connection
refused); went to main/2 (least load, 3 of 8 in flight with it); completed after
2.1 s.

SECONDS  WHAT                       WHY
  0.000  arrived                    chat for model m, streamed, a prompt of 1234
                                    bytes
  0.000  sent to main/1             least load, 3 of 8 in flight with it
  0.400  attempt 1 failed           connection refused
  0.400  main/1 ejected for 10 s    connection refused
  0.400  sent to main/2, attempt 2  least load, 3 of 8 in flight with it
  0.900  first token                of attempt 2
  2.100  attempt 2 completed
  2.100  ended: completed

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "degraded": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, went at once to
main/2 (least load, 3 of 8 in flight with it); was degraded at level 2 (at most
output_tokens=256 (asked for 1024), reasoning_effort=low); completed after
700 ms.

SECONDS  WHAT                 WHY
  0.000  arrived              chat for model m, streamed, a prompt of 1234
                              bytes, 4 answers, at most 1024 output tokens
  0.000  sent to main/2       least load, 3 of 8 in flight with it; degraded at
                              level 2, at most output_tokens=256 (asked for
                              1024), reasoning_effort=low
  0.700  attempt 1 completed
  0.700  ended: completed

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "refused by a rate limit": """\
req_0123456789abcdef01234567 of tenant acme, class batch, was refused on arrival
as rate_limited: tenant "acme" has used 60 of 60 requests per minute; wait 12 s
or raise requests_per_minute; Retry-After 12 s.

SECONDS  WHAT                 WHY
  0.000  arrived              chat for model m, streamed, a prompt of 1234
                              bytes, service_tier "flex", retry 1 of its caller
  0.000  ended: rate_limited  tenant "acme" has used 60 of 60 requests per
                              minute; wait 12 s or raise requests_per_minute;
                              Retry-After 12 s

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "expired": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, waited 30 s
while 2 others were sent to model m (2 of bolt); ended after 30 s as expired:
waited 30 s, as long as class "interactive" may wait; Retry-After 4 s.

SECONDS  WHAT                         WHY
  0.000  arrived                      chat for model m, streamed, a prompt of
                                      1234 bytes, class "interactive"
  0.000  queued in class interactive  while it waited, 2 others were sent to
                                      model m (2 of bolt)
 12.000  policy changed               configuration 0123abcd came into force
 30.000  ended: expired               waited 30 s, as long as class
                                      "interactive" may wait; Retry-After 4 s

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "cancelled": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, went at once to
main/2 (least load, 3 of 8 in flight with it); was cancelled after 812 ms (the
client left).

SECONDS  WHAT                       WHY
  0.000  arrived                    chat for model m, streamed, a prompt of 1234
                                    bytes, first token within 2 s, whole answer
                                    within 20 s
  0.000  sent to main/2             least load, 3 of 8 in flight with it
  0.812  attempt 1 is told to stop  client_left
  0.812  ended: cancelled           the client left
  0.815  attempt 1 stopped          client_left

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
    "hedged": """\
req_0123456789abcdef01234567 of tenant acme, class interactive, went at once to
main/1 (least load, 3 of 8 in flight with it); was sent to main/2 as well, as a
hedge (main/1 is silent for longer than usual, 0.6 s); attempt 1 was stopped
(attempt 2 spoke first); completed after 1.7 s.

SECONDS  WHAT                         WHY
  0.000  arrived                      chat for model m, streamed, a prompt of
                                      1234 bytes
  0.000  sent to main/1               least load, 3 of 8 in flight with it
  0.600  hedged at main/2, attempt 2  main/1 is silent for longer than usual,
                                      0.6 s
  0.900  first token                  of attempt 2
  0.900  attempt 1 is told to stop    attempt 2 spoke first
  0.902  attempt 1 stopped            attempt 2 spoke first
  1.700  attempt 2 completed          311 prompt and 87 output tokens
  1.700  ended: completed

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there.""",
}


def read(name: str) -> Explanation:
    """What the command line has of a history: what the page carries, and no more."""
    picture = observed(HISTORIES[name]).picture(RequestId(ID))
    assert picture is not None
    return msgspec.json.decode(msgspec.json.encode(explained(picture, at(60))), type=Explanation)


def test_every_history_has_its_text() -> None:
    assert TEXTS.keys() == HISTORIES.keys()


@pytest.mark.parametrize("name", HISTORIES)
def test_people_read_the_verdict_and_then_the_steps(name: str) -> None:
    assert "\n".join(lines(read(name), 80)) == TEXTS[name]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", HISTORIES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    assert max(len(line) for line in lines(read(name), width)) <= width


def test_a_long_endpoint_leaves_room_for_the_reason() -> None:
    long = Step(0.0, "sent to main/gpu-node-17.cluster-a.example.internal:8000", "least load, 3 of 8 in flight with it")
    told = list(lines(Explanation(ID, "acme", "m", "It went there.", "2026-01-01", (long,)), 80))

    assert told[2:-2] == [
        "SECONDS  WHAT                            WHY",
        "  0.000  sent to main/gpu-node-17.clust  least load, 3 of 8 in flight with it",
        "         er-a.example.internal:8000",
    ]


def test_what_callers_name_does_not_command_the_terminal() -> None:
    named = "\x1b]0;owned\x07 \x9b2J\r\n"
    evil = Explanation(ID, "acme", "m", f"summary {named}", f"{named}", (Step(0.0, f"what {named}", f"why {named}"),))

    assert [letter for line in lines(evil) for letter in line if not letter.isprintable()] == []


# With a gateway


async def asked(headgate: Headgate, *arguments: str) -> Said:
    return await asyncio.to_thread(headgate, "explain", *arguments)


async def test_a_request_is_explained_by_the_id_of_its_answer(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat()) as answer:
            request_id = answer.headers["x-request-id"]
        by_file = await asked(headgate, request_id)
        by_address = await asked(headgate, request_id, "--admin", gateway.admin_url, "--json")

    endpoint = f"small/{engine.url.removeprefix('http://')}"
    assert (by_file.code, by_file.err) == (0, "")
    told = " ".join(by_file.out.split())
    assert told.startswith(f"{request_id} of tenant laptop, class interactive, went at once to {endpoint} (")
    assert "ended: completed" in by_file.out
    assert (by_address.code, by_address.err) == (0, "")
    assert json.loads(by_address.out)["outcome"] == "completed"


async def test_one_that_waits_is_explained_while_it_waits(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, in_flight_max=1), tmp_path) as gateway:
        engine.behaviour = Behaviour(hang_before_head=True)
        first = asyncio.create_task(gateway.post(chat()).__aenter__())
        held = await engine.next_request()
        second = asyncio.create_task(gateway.post(chat()).__aenter__())
        await gateway.until(lambda status: status["queued"]["interactive"] == 1)
        running, waiting = gateway.gateway._sight.decisions._admitted
        at_engine = await asked(headgate, running.request_id)
        queued = await asked(headgate, waiting.request_id)
        engine.behaviour = Behaviour()
        held.resume.set()
        await asyncio.gather(first, second)
        afterwards = await asked(headgate, waiting.request_id)

    assert "its first token has not come." in " ".join(at_engine.out.split())
    assert "so far while nothing was sent to model m" in " ".join(queued.out.split())
    assert "while nothing was sent to pool small" in " ".join(afterwards.out.split())
    assert afterwards.out.count("ended: completed") == 1


async def test_an_id_that_is_not_known_is_told_with_the_next_step(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path):
        said = await asked(headgate, "req_of_yesterday")

    assert said == Said(
        1,
        "",
        "headgate: nothing is known of request req_of_yesterday: is it the x-request-id of an answer of this gateway, "
        f"since its start? It keeps the last {REQUESTS_MAX} requests and the last {REFUSED_MAX} refused on arrival; "
        "records in its configuration keeps more\n",
    )


def test_where_no_gateway_runs_it_is_said_what_to_do(headgate: Headgate, file: Path) -> None:
    config = a_config("http://127.0.0.1:1")
    file.write_text(yaml.safe_dump(config))

    assert headgate("explain", ID) == Said(
        1,
        "",
        f"headgate: no gateway answers at http://{config['admin_listen']}: GET /explain/{ID} failed: connection "
        "refused; start one with `headgate serve headgate.yaml`, or name its admin listener with --admin\n",
    )


async def test_another_server_is_not_taken_for_a_gateway(headgate: Headgate) -> None:
    async with FakeEngine() as engine:
        said = await asked(headgate, ID, "--admin", engine.url)

    assert said.code == 1
    assert said.err.startswith(f"headgate: what answers at {engine.url} explains no requests; ")


@pytest.mark.parametrize("request_id", ["", "../status", "x-request-id: req_1", "req_1\n", "a" * 129])
def test_what_is_no_request_id_is_not_asked_for(headgate: Headgate, request_id: str) -> None:
    said = headgate("explain", request_id)

    assert (said.code, said.out) == (2, "")
    assert said.err.endswith(
        "is no request id; it is in the header x-request-id of every answer, such as req_0123abcd\n"
    )


def test_file_and_address_exclude_each_other(headgate: Headgate) -> None:
    assert headgate("explain", ID, "--config", "x.yaml", "--admin", "http://127.0.0.1:9090").code == 2
