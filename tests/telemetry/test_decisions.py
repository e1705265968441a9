"""Is what was decided about a request kept, told truly, and bounded?"""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Abort, Eject, End, Readmit
from headgate.core.events import AttemptEnded, AttemptEnding, FirstToken, PolicyChanged, TimerFired
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.units import SECOND, Duration, RequestId
from headgate.telemetry.decisions import (
    NAME_CHARS_MAX,
    REASON_CHARS_MAX,
    REFUSED_MAX,
    REQUESTS_MAX,
    STEPS_MAX,
    Decisions,
)
from headgate.telemetry.explanation import explained, unknown
from tests.telemetry.histories import (
    CALLER_LEFT,
    COSTS,
    HELD,
    HISTORIES,
    ID,
    LEAST,
    Moment,
    arrived,
    at,
    attempt_over,
    observed,
    others,
    over,
    sent,
)


def told(*history: Moment, now: float = 60) -> dict[str, Any]:
    picture = observed(history).picture(RequestId(ID))
    assert picture is not None
    return explained(picture, at(now))


def steps_of(explanation: dict[str, Any], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(step[key] for key in keys) for step in explanation["steps"]]


def small() -> Decisions:
    """An observer that keeps three requests, and two that were refused."""
    return Decisions(requests_max=3, refused_max=2, lasting_max=0)


# What machines are told


def test_machines_get_the_verdict_and_the_facts() -> None:
    data = told(*HISTORIES["waited, then completed"])

    assert {key: value for key, value in data.items() if key not in ("steps", "summary")} == {
        "request_id": ID,
        "tenant": "acme",
        "model": "m",
        "class": "interactive",
        "outcome": "completed",
        "arrived_at": "2026-01-01T00:00:00.000+00:00",
    }
    assert steps_of(data, "at_ms", "kind") == [
        (0.0, "arrived"),
        (0.0, "queued"),
        (1200.0, "dispatched"),
        (1520.0, "first_token"),
        (3410.0, "attempt_ended"),
        (3410.0, "ended"),
    ]
    assert data["steps"][1]["sent_meanwhile"] == [
        {"tenant": "bolt", "class": "interactive", "requests": 9},
        {"tenant": "acme", "class": "interactive", "requests": 4},
        {"tenant": "coil", "class": "batch", "requests": 3},
        {"tenant": "dune", "class": "interactive", "requests": 1},
    ]
    facts = ("endpoint", "pool", "attempt", "level", "hedge", "caps")
    assert [data["steps"][2][fact] for fact in facts] == ["main/2", "main", 1, 0, False, []]
    assert data["steps"][2]["costs_ms"] == {"pending_prefill": 1.5, "own_prefill": 30.404, "prefix_hit": -20.0}


def test_explanation_names_the_share_of_each_cost_term() -> None:
    seconds = (("maintenance_window", 2 * SECOND), ("distance", 5_000_000))
    first, second, plain = (
        told((0, arrived(), [sent(costs=costs)]))["steps"][1]["why"] for costs in (COSTS, seconds, ())
    )

    assert first == f"{LEAST}; score 11.90 ms: pending prefill 1.50 ms, own prefill 30.40 ms, prefix hit -20.00 ms"
    assert second == f"{LEAST}; score 2.00 s: maintenance window 2.00 s, distance 5.00 ms"
    assert plain == LEAST


@pytest.mark.parametrize("name", HISTORIES)
def test_every_history_is_told_in_the_order_of_time_and_as_plain_data(name: str) -> None:
    data = told(*HISTORIES[name])
    moments = [step["at_ms"] for step in data["steps"]]

    assert moments == sorted(moments)
    assert msgspec.json.decode(msgspec.json.encode(data)) == data


# What is read from the histories of others


def test_those_sent_elsewhere_before_or_after_are_not_in_its_way() -> None:
    data = told(
        (-2, arrived("before"), [sent("before")]),
        (-1, arrived("after"), []),
        (-1, arrived("elsewhere"), []),
        (-1, arrived("ahead", "bolt"), []),
        (0, arrived(), []),
        (1, TimerFired(), [sent("elsewhere", "other/1"), sent("ahead", waited=2)]),
        (2, TimerFired(), [sent(waited=2)]),
        (3, TimerFired(), [sent("after", waited=4)]),
    )

    assert "waited 2 s while 1 other was sent to pool main (1 of bolt); went to main/2" in data["summary"]


def test_one_that_was_never_sent_is_told_of_those_of_its_model() -> None:
    data = told(
        (-1, arrived("same", "bolt"), []),
        (-1, arrived("another", "bolt", model="x"), []),
        (0, arrived(), []),
        (1, TimerFired(), [sent("same", "a/1"), sent("another", "b/1")]),
    )

    assert "has waited 60 s so far while 1 other was sent to model m (1 of bolt in interactive)." in data["summary"]


def test_where_histories_were_forgotten_the_count_is_a_least_one() -> None:
    def summary(forgotten_after: float) -> str:
        ahead: list[Moment] = [(-2, arrived("old"), []), (-1, arrived("ahead"), []), (0, arrived(), [])]
        sent_both: list[Moment] = [(forgotten_after, TimerFired(), [sent("old")]), (2, TimerFired(), [sent("ahead")])]
        picture = observed([*ahead, *sent_both, (3, arrived("new"), [])], small()).picture(RequestId(ID))
        assert picture is not None
        return explained(picture, at(4))["summary"]

    assert "while at least 1 other was sent to model m" in summary(forgotten_after=1)
    assert "while 1 other was sent to model m" in summary(forgotten_after=-0.5)


# While it is open


def test_an_open_request_is_told_where_it_is() -> None:
    at_engine = (0, arrived(), [sent()])

    assert told((0, arrived(), []), now=0)["summary"].endswith("has just been queued.")
    assert told(at_engine)["summary"].endswith("is still there after 60 s, its first token has not come.")
    assert told(at_engine, (1, FirstToken(ID, 1), []))["summary"].endswith("its answer has begun.")
    assert told(at_engine)["steps"][-1] == {
        "at_ms": 60_000.0,
        "kind": "open",
        "what": "still at main/2",
        "why": "its first token has not come",
    }
    assert told(at_engine)["outcome"] is None


def test_one_that_is_held_is_told_what_for() -> None:
    data = told((0, arrived(), [HELD]), now=7)

    assert data["class"] == "interactive"
    assert data["summary"].endswith(
        "class interactive, has been held 7 s so far for the first endpoint of pool main to start."
    )


def test_one_that_was_held_in_vain_is_told_for_how_long() -> None:
    ending = replace(
        over(Outcome.NO_ENDPOINTS, "nothing came", attempts=0, waited=9, retry_after=5), held_ns=9 * SECOND
    )
    data = told((0, arrived(), [HELD]), (9, TimerFired(), [ending]))

    assert data["summary"].endswith(
        "was held 9 s for the first endpoint of pool main to start; "
        "ended after 9 s as no_endpoints: nothing came; Retry-After 5 s."
    )
    assert [step["kind"] for step in data["steps"]] == ["arrived", "held", "ended"]


def test_one_that_was_held_and_then_waited_is_told_both() -> None:
    data = told(*HISTORIES["held for a start"])

    assert data["summary"].split("; ")[:2] == [
        f"{ID} of tenant acme, class interactive, was held 20 s for the first endpoint of pool main to start",
        "waited 500 ms while nothing was sent to pool main, where no endpoint was ready and had room",
    ]
    assert " at once " not in data["summary"]


def test_one_that_waits_for_another_attempt_has_waited_since_the_last_ended() -> None:
    data = told((0, arrived(), [sent()]), (5, attempt_over(AttemptEnding.SILENT, "no token in time"), []), now=7)

    assert data["summary"].endswith(
        "attempt 1 fell silent (no token in time); "
        "has waited 2 s so far while nothing was sent to pool main, where no endpoint was ready and had room."
    )


# What happened around it


def test_a_policy_counts_only_if_it_came_while_the_request_was_open() -> None:
    policies: list[Moment] = [(moment, PolicyChanged(Policy(), f"h{moment}"), []) for moment in (-1, 1, 3)]
    data = told(*policies, (0, arrived(), [sent()]), (2, attempt_over(), [over()]))

    assert [step["why"] for step in data["steps"] if step["kind"] == "policy_changed"] == [
        "configuration h1 came into force"
    ]


def test_an_ejection_counts_only_if_it_was_of_its_endpoint_while_it_was_there() -> None:
    ejections: list[Moment] = [
        (moment, TimerFired(), [Eject(endpoint, at(moment + 10), f"{endpoint} at {moment}")])
        for moment, endpoint in ((-1, "main/2"), (1, "main/2"), (1, "main/3"), (3, "main/2"))
    ]
    data = told(*ejections, (0, arrived(), [sent()]), (2, attempt_over(), [over()]))

    assert [step["why"] for step in data["steps"] if step["kind"] == "ejected"] == ["main/2 at 1"]


# What it was allowed


def test_caps_that_cannot_have_lowered_anything_are_not_told() -> None:
    caps = Caps(prompt_tokens=1_000, output_tokens=256, logprobs=5)
    [_, dispatched, *_] = told((0, arrived(output_tokens_max=100), [sent(caps=caps)]))["steps"]

    assert dispatched["caps"] == ["logprobs=5"]


def test_caps_that_have_are_told_with_what_was_asked() -> None:
    caps = Caps(prompt_tokens=100, trims_prompt=True, output_tokens=256)
    asked = arrived(output_tokens_max=300, n=9, prompt_bytes=4_000)
    [_, dispatched, *_] = told((0, asked, [sent(caps=caps)]))["steps"]

    assert dispatched["caps"] == [
        "prompt_tokens=100 (asked for 1000)",
        "output_tokens=256 (asked for 300)",
        "n=8 (asked for 9)",
    ]


def test_a_level_that_lowers_nothing_is_told_all_the_same() -> None:
    data = told((0, arrived(), [sent(level=1, reason="")]), (1, attempt_over(), [over()]))

    assert "went at once to main/2; was degraded at level 1; completed after 1 s." in data["summary"]


# Endings


def test_an_end_with_its_attempt_is_told_once() -> None:
    detail = "connection refused"
    failed = attempt_over(AttemptEnding.FAILED, detail)
    data = told((0, arrived(), [sent()]), (1, failed, [over(Outcome.ENGINE_FAILED, f"attempt 3 of 3: {detail}")]))

    assert data["summary"].endswith("; ended after 1 s as engine_failed: attempt 3 of 3: connection refused.")
    assert data["summary"].count(detail) == 1


def test_what_concerns_other_requests_is_not_its_own() -> None:
    data = told((0, arrived(), []), (1, FirstToken("x", 1), [Abort("x", 1, "e", ""), Readmit("e", "")]))

    assert [step["kind"] for step in data["steps"]] == ["arrived", "queued"]


# Bounds


def test_the_oldest_is_forgotten_first() -> None:
    decisions = observed([(number, arrived(str(number)), []) for number in range(5)], small())

    assert [number for number in range(5) if decisions.picture(RequestId(str(number)))] == [2, 3, 4]
    assert (decisions.reach().held, decisions.reach().since) == (3, at(2))


def over_of(name: str) -> End:
    return replace(over(), request_id=RequestId(name))


def test_what_is_open_is_not_forgotten_before_what_has_ended() -> None:
    moments: list[Moment] = [(0, arrived("long"), [sent("long")])]
    for number in range(1, 6):
        moments.append((number, arrived(str(number)), []))
        moments.append((number, TimerFired(), [over_of(str(number))]))
    decisions = observed(moments, Decisions(requests_max=3, lasting_max=1))

    assert [name for name in ("long", *"12345") if decisions.history(RequestId(name))] == ["long", *"345"]
    assert decisions.reach().since == at(0)
    assert "long" in [each.request_id for each in decisions.picture(RequestId("5")).requests]  # type: ignore[union-attr]
    # From its end on it ages as one that arrived then.
    decisions.saw(TimerFired(), [over_of("long")], at(6))
    assert [name for name in ("long", *"12345") if decisions.history(RequestId(name))] == ["long", *"45"]
    for number in range(7, 10):
        decisions.saw(arrived(str(number)), [], at(number))
        decisions.saw(TimerFired(), [over_of(str(number))], at(number))
    assert decisions.history(RequestId("long")) is None


def test_of_those_that_are_open_for_ever_only_so_many_are_kept() -> None:
    decisions = observed([(n, arrived(str(n)), []) for n in range(9)], Decisions(requests_max=3, lasting_max=2))

    assert [n for n in range(9) if decisions.history(RequestId(str(n)))] == [4, 5, 6, 7, 8]


def test_a_flood_of_refusals_does_not_wash_away_the_others() -> None:
    decisions = observed([(0, arrived("kept"), []), (1, arrived("other"), [])], small())
    for number in range(100):
        name = RequestId(f"flood-{number}")
        decisions.saw(arrived(name), [replace(over(Outcome.SHED, attempts=0), request_id=name)], at(2 + number))

    assert decisions.picture(RequestId("kept")) is not None
    assert decisions.reach().held == 2 + 2
    assert [number for number in range(100) if decisions.picture(RequestId(f"flood-{number}"))] == [98, 99]


def test_an_id_that_comes_again_is_told_of_its_last_time() -> None:
    decisions = observed([(0, arrived(tenant="first"), []), (1, arrived(tenant="second"), [])], small())
    observed([(2, arrived("x"), []), (3, arrived("y"), [])], decisions)

    picture = decisions.picture(RequestId(ID))
    assert picture is not None
    assert picture.history.tenant == "second"


def test_an_id_that_comes_again_to_be_refused_is_forgotten_with_its_last_time() -> None:
    refusals: list[Moment] = []
    for moment, name in ((1, RequestId(ID)), (2, RequestId("a")), (3, RequestId("b"))):
        refusals.append((moment, arrived(name), [replace(over(Outcome.SHED, attempts=0), request_id=name)]))
    admitted: list[Moment] = [(4 + number, arrived(f"x{number}"), []) for number in range(3)]
    decisions = observed([(0, arrived(), []), *refusals, *admitted], small())

    assert decisions.picture(RequestId(ID)) is None
    assert decisions.reach().held == 3 + 2


def test_steps_are_bounded_and_the_end_is_kept() -> None:
    retries: list[Moment] = [
        (number, TimerFired(), [sent(attempt=number), Abort(ID, number, "main/2", "again")])
        for number in range(1, STEPS_MAX)
    ]
    data = told((0, arrived(), []), *retries, (99, CALLER_LEFT, [over(Outcome.CANCELLED, "the client left")]))

    assert [step["kind"] for step in data["steps"]].count("left_out") == 1
    assert len(data["steps"]) < STEPS_MAX + 10
    assert data["outcome"] == "cancelled"


def test_long_texts_of_callers_and_engines_are_cut() -> None:
    long = "x" * 100_000
    asked = arrived(model=long, class_named=long, service_tier=long, rung=long)
    ended = AttemptEnded(ID, 1, AttemptEnding.FAILED, long)
    decisions = observed([(0, asked, [sent()]), (1, ended, [over(Outcome.ENGINE_FAILED, long)])])
    kept = decisions._histories[RequestId(ID)]
    decisions.saw(TimerFired(), [Eject("main/2", at(10), long)], at(1))
    [_, (_, attempt), (_, end)] = kept.steps
    [(_, ejection)] = decisions._ejections

    assert {len(kept.model), len(kept.class_named or ""), len(kept.rung or "")} == {NAME_CHARS_MAX}
    assert len(ejection.reason) == REASON_CHARS_MAX
    assert (len(attempt.detail), len(end.reason)) == (REASON_CHARS_MAX, REASON_CHARS_MAX)  # type: ignore[union-attr]


def test_what_is_kept_of_a_life_stays_small() -> None:
    """Whatever callers send: the ticket, with its hashes and keys, is not kept."""
    decisions, lives = Decisions(), 500
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(lives):
        life = f"req_{number:024x}"
        ticket = arrived(life, prefix=bytes(512 + number % 2), idempotency_key=f"{number:0>255}", model="m" * 10_000)
        decisions.saw(ticket, [sent(life)], at(number))
        decisions.saw(FirstToken(life, 1), [], at(number))
        decisions.saw(AttemptEnded(life, 1, AttemptEnding.COMPLETED), [], at(number))
    del ticket
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (after - before) / lives < 3_000


def test_the_docs_tell_the_bounds_and_every_kind_of_step() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "explain.md").read_text()
    known = {step["kind"] for history in HISTORIES.values() for step in told(*history)["steps"]}

    assert f"the last {REQUESTS_MAX:,} requests" in page
    assert f"the last {REFUSED_MAX:,} that were rejected" in " ".join(page.split())
    assert [kind for kind in sorted(known | {"open"}) if f"`{kind}`" not in page] == []


def test_neither_hashes_nor_keys_of_a_caller_are_kept() -> None:
    decisions = observed([(0, arrived(prefix=b"canary-hash", idempotency_key="canary-key"), [])])
    kept = decisions._histories[RequestId(ID)]

    assert "canary" not in "".join(repr(getattr(kept, name)) for name in kept.__slots__)


# What is not known


def test_one_that_is_not_known_is_told_how_far_back_is_known() -> None:
    nothing = unknown(RequestId("x"), Decisions().reach(), at(0))
    something = unknown(RequestId("x"), observed([(0, arrived(), [])]).reach(), at(840))

    assert nothing["request_id"] == "x"
    assert "refused on arrival; records in its configuration" in str(nothing["error"])
    assert "refused on arrival, the oldest of which came 840 s ago; records" in str(something["error"])


@pytest.mark.parametrize(
    ("length", "said"),
    [(48 * 3_600, "2 days"), (24 * 3_600, "24 hours"), (3_600, "60 minutes"), (119, "119 s"), (1, "1 s")],
)
def test_one_that_no_file_has_either_is_told_how_long_files_keep(length: int, said: str) -> None:
    told = unknown(RequestId("x"), Decisions().reach(), at(0), longer_ns=Duration(length * SECOND))

    assert f"an answer of the last {said}? Files keep that long" in str(told["error"])


# It must not raise


@given(
    st.lists(
        st.one_of(
            st.builds(lambda attempt: (FirstToken(ID, attempt), []), st.integers(0, 3)),
            st.builds(
                lambda attempt, ending, detail: (AttemptEnded(ID, attempt, ending, detail), []),
                st.integers(0, 3),
                st.sampled_from(AttemptEnding),
                st.text(max_size=3),
            ),
            st.builds(
                lambda attempt, waited, level, hedge: (
                    TimerFired(),
                    [sent(attempt=attempt, waited=waited, level=level, hedge=hedge)],
                ),
                st.integers(0, 3),
                st.floats(-1, 100),
                st.integers(0, 6),
                st.booleans(),
            ),
            st.builds(
                lambda outcome, waited: (TimerFired(), [over(outcome, waited=waited)]),
                st.sampled_from(Outcome),
                st.floats(-1, 100),
            ),
            st.builds(lambda length: (TimerFired(), [Eject("main/2", at(length), "")]), st.integers(0, 9)),
            st.just((TimerFired(), [Abort(ID, 1, "main/2", "")])),
        ),
        max_size=60,
    )
)
def test_whatever_happens_it_can_be_told(happenings: list[Any]) -> None:
    history = [(0, arrived(), []), *((number, *each) for number, each in enumerate(happenings))]
    data = told(*history, now=1_000)

    assert data["summary"].startswith(f"{ID} of tenant acme")
    assert all(step["what"] for step in data["steps"])
    assert all(isinstance(step["at_ms"], float) for step in data["steps"])


def test_many_others_are_counted_whatever_their_number() -> None:
    data = told(*others(300, "bolt", first=0), (0, arrived(), []), (30, TimerFired(), [sent(waited=30)]))

    assert data["steps"][1]["waited_ms"] == 30 * SECOND / 1e6
    assert "300 others were sent to pool main (300 of bolt)" in data["summary"]
