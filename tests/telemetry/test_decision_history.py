"""Request histories are kept within bounds and explained correctly."""

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
from headgate.telemetry.decision_history import (
    NAME_CHARS_MAX,
    REASON_CHARS_MAX,
    REJECTED_MAX,
    REQUESTS_MAX,
    STEPS_MAX,
    DecisionHistory,
)
from headgate.telemetry.explanation import explain, unknown_request
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
    picture = observed(history).snapshot(RequestId(ID))
    assert picture is not None
    return explain(picture, at(now))


def steps_of(explanation: dict[str, Any], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(step[key] for key in keys) for step in explanation["steps"]]


def small() -> DecisionHistory:
    """An observer that keeps three requests and two rejected requests."""
    return DecisionHistory(requests_max=3, rejected_max=2, long_open_max=0)


# Structured explanation


def test_explanation_includes_request_facts_and_steps() -> None:
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


def test_dispatch_reason_lists_each_cost_term_in_the_score() -> None:
    seconds = (("maintenance_window", 2 * SECOND), ("distance", 5_000_000))
    first, second, plain = (
        told((0, arrived(), [sent(costs=costs)]))["steps"][1]["reason"] for costs in (COSTS, seconds, ())
    )

    assert first == f"{LEAST}; score 11.90 ms: pending prefill 1.50 ms, own prefill 30.40 ms, prefix hit -20.00 ms"
    assert second == f"{LEAST}; score 2.00 s: maintenance window 2.00 s, distance 5.00 ms"
    assert plain == LEAST


@pytest.mark.parametrize("name", HISTORIES)
def test_explanation_is_chronological_plain_data(name: str) -> None:
    data = told(*HISTORIES[name])
    moments = [step["at_ms"] for step in data["steps"]]

    assert moments == sorted(moments)
    assert msgspec.json.decode(msgspec.json.encode(data)) == data


# Other requests sent during the wait


def test_wait_counts_only_requests_sent_to_the_same_pool_in_the_meantime() -> None:
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

    assert "waited 2 s while 1 other request was sent to pool main (1 from bolt); was sent to main/2" in data["summary"]


def test_unsent_requests_wait_counts_requests_sent_for_its_model() -> None:
    data = told(
        (-1, arrived("same", "bolt"), []),
        (-1, arrived("another", "bolt", model="x"), []),
        (0, arrived(), []),
        (1, TimerFired(), [sent("same", "a/1"), sent("another", "b/1")]),
    )

    assert (
        "has waited 60 s so far while 1 other request was sent for model m (1 from bolt in class interactive)."
        in data["summary"]
    )


def test_count_is_a_lower_bound_if_overlapping_histories_were_evicted() -> None:
    def summary(forgotten_after: float) -> str:
        ahead: list[Moment] = [(-2, arrived("old"), []), (-1, arrived("ahead"), []), (0, arrived(), [])]
        sent_both: list[Moment] = [(forgotten_after, TimerFired(), [sent("old")]), (2, TimerFired(), [sent("ahead")])]
        picture = observed([*ahead, *sent_both, (3, arrived("new"), [])], small()).snapshot(RequestId(ID))
        assert picture is not None
        return explain(picture, at(4))["summary"]

    assert "while at least 1 other request was sent for model m" in summary(forgotten_after=1)
    assert "while 1 other request was sent for model m" in summary(forgotten_after=-0.5)


# Open requests


def test_open_request_is_explained_from_its_current_state() -> None:
    at_engine = (0, arrived(), [sent()])

    assert told((0, arrived(), []), now=0)["summary"].endswith("has just been queued.")
    assert told(at_engine)["summary"].endswith("is still in progress after 60 s (no token has arrived).")
    assert told(at_engine, (1, FirstToken(ID, 1), []))["summary"].endswith("(the response has begun).")
    assert told(at_engine)["steps"][-1] == {
        "at_ms": 60_000.0,
        "kind": "open",
        "event": "still in progress at main/2",
        "reason": "no token has arrived",
    }
    assert told(at_engine)["outcome"] is None


def test_held_request_is_explained_by_the_cold_start_it_is_waiting_for() -> None:
    data = told((0, arrived(), [HELD]), now=7)

    assert data["class"] == "interactive"
    assert data["summary"].endswith("class interactive) has been held 7 s so far for a cold start of pool main.")


def test_unsent_held_request_is_explained_with_its_hold_time() -> None:
    ending = replace(
        over(Outcome.NO_ENDPOINTS, "nothing came", attempts=0, waited=9, retry_after=5), held_ns=9 * SECOND
    )
    data = told((0, arrived(), [HELD]), (9, TimerFired(), [ending]))

    assert data["summary"].endswith(
        "was held 9 s for a cold start of pool main; ended after 9 s with no_endpoints: nothing came; Retry-After 5 s."
    )
    assert [step["kind"] for step in data["steps"]] == ["arrived", "held", "ended"]


NOTHING_SENT = (
    "nothing was sent to pool main because no ready endpoint had headroom (slots, pending prefill, KV cache or time "
    "per token)"
)


def test_explanation_separates_hold_time_from_queue_time() -> None:
    data = told(*HISTORIES["held for a cold start"])

    assert data["summary"].split("; ")[:2] == [
        f"{ID} (tenant acme, class interactive) was held 20 s for a cold start of pool main",
        f"waited 500 ms while {NOTHING_SENT}",
    ]
    assert " immediately " not in data["summary"]


def test_wait_for_a_retry_starts_when_the_last_attempt_ends() -> None:
    data = told((0, arrived(), [sent()]), (5, attempt_over(AttemptEnding.TIMEOUT, "no token in time"), []), now=7)

    assert data["summary"].endswith(
        f"attempt 1 timed out (no token in time); has waited 2 s so far while {NOTHING_SENT}."
    )


# Concurrent events


def test_explanation_includes_only_policy_changes_while_the_request_was_open() -> None:
    policies: list[Moment] = [(moment, PolicyChanged(Policy(), f"h{moment}"), []) for moment in (-1, 1, 3)]
    data = told(*policies, (0, arrived(), [sent()]), (2, attempt_over(), [over()]))

    assert [step["reason"] for step in data["steps"] if step["kind"] == "policy_changed"] == [
        "configuration h1 took effect"
    ]


def test_explanation_includes_only_its_endpoints_ejections_during_the_attempt() -> None:
    ejections: list[Moment] = [
        (moment, TimerFired(), [Eject(endpoint, at(moment + 10), f"{endpoint} at {moment}")])
        for moment, endpoint in ((-1, "main/2"), (1, "main/2"), (1, "main/3"), (3, "main/2"))
    ]
    data = told(*ejections, (0, arrived(), [sent()]), (2, attempt_over(), [over()]))

    assert [step["reason"] for step in data["steps"] if step["kind"] == "ejected"] == ["main/2 at 1"]


# Caps and degradation


def test_caps_without_effect_are_omitted() -> None:
    caps = Caps(prompt_tokens=1_000, output_tokens=256, logprobs=5)
    [_, dispatched, *_] = told((0, arrived(output_tokens_max=100), [sent(caps=caps)]))["steps"]

    assert dispatched["caps"] == ["logprobs=5"]


def test_effective_caps_are_listed_with_the_requested_values() -> None:
    caps = Caps(prompt_tokens=100, trim_prompt=True, output_tokens=256)
    asked = arrived(output_tokens_max=300, n=9, prompt_bytes=4_000)
    [_, dispatched, *_] = told((0, asked, [sent(caps=caps)]))["steps"]

    assert dispatched["caps"] == [
        "prompt_tokens=100 instead of 1000",
        "output_tokens=256 instead of 300",
        "n=8 instead of 9",
    ]


def test_degradation_level_is_mentioned_even_without_effective_caps() -> None:
    data = told((0, arrived(), [sent(level=1, reason="")]), (1, attempt_over(), [over()]))

    assert "was sent immediately to main/2; was degraded to level 1; completed after 1 s." in data["summary"]


# Endings


def test_failure_detail_appears_once_if_the_attempt_ends_the_request() -> None:
    detail = "connection refused"
    failed = attempt_over(AttemptEnding.FAILED, detail)
    data = told((0, arrived(), [sent()]), (1, failed, [over(Outcome.ENGINE_ERROR, f"attempt 3 of 3: {detail}")]))

    assert data["summary"].endswith("; ended after 1 s with engine_error: attempt 3 of 3: connection refused.")
    assert data["summary"].count(detail) == 1


def test_explanation_ignores_events_for_other_requests() -> None:
    data = told((0, arrived(), []), (1, FirstToken("x", 1), [Abort("x", 1, "e", ""), Readmit("e", "")]))

    assert [step["kind"] for step in data["steps"]] == ["arrived", "queued"]


# Bounds


def test_oldest_history_is_evicted_first() -> None:
    decisions = observed([(number, arrived(str(number)), []) for number in range(5)], small())

    assert [number for number in range(5) if decisions.snapshot(RequestId(str(number)))] == [2, 3, 4]
    assert (decisions.retention().kept, decisions.retention().oldest_at) == (3, at(2))


def over_of(name: str) -> End:
    return replace(over(), request_id=RequestId(name))


def test_open_requests_are_evicted_after_ended_ones() -> None:
    moments: list[Moment] = [(0, arrived("long"), [sent("long")])]
    for number in range(1, 6):
        moments.append((number, arrived(str(number)), []))
        moments.append((number, TimerFired(), [over_of(str(number))]))
    decisions = observed(moments, DecisionHistory(requests_max=3, long_open_max=1))

    assert [name for name in ("long", *"12345") if decisions.history(RequestId(name))] == ["long", *"345"]
    assert decisions.retention().oldest_at == at(0)
    assert "long" in [each.request_id for each in decisions.snapshot(RequestId("5")).requests]  # type: ignore[union-attr]
    # Once it has ended, it is evicted as if it had arrived at that time.
    decisions.observe(TimerFired(), [over_of("long")], at(6))
    assert [name for name in ("long", *"12345") if decisions.history(RequestId(name))] == ["long", *"45"]
    for number in range(7, 10):
        decisions.observe(arrived(str(number)), [], at(number))
        decisions.observe(TimerFired(), [over_of(str(number))], at(number))
    assert decisions.history(RequestId("long")) is None


def test_number_of_never_ending_requests_is_bounded() -> None:
    decisions = observed([(n, arrived(str(n)), []) for n in range(9)], DecisionHistory(requests_max=3, long_open_max=2))

    assert [n for n in range(9) if decisions.history(RequestId(str(n)))] == [4, 5, 6, 7, 8]


def test_flood_of_rejections_does_not_evict_admitted_requests() -> None:
    decisions = observed([(0, arrived("kept"), []), (1, arrived("other"), [])], small())
    for number in range(100):
        name = RequestId(f"flood-{number}")
        decisions.observe(arrived(name), [replace(over(Outcome.SHED, attempts=0), request_id=name)], at(2 + number))

    assert decisions.snapshot(RequestId("kept")) is not None
    assert decisions.retention().kept == 2 + 2
    assert [number for number in range(100) if decisions.snapshot(RequestId(f"flood-{number}"))] == [98, 99]


def test_reused_request_id_refers_to_the_latest_request() -> None:
    decisions = observed([(0, arrived(tenant="first"), []), (1, arrived(tenant="second"), [])], small())
    observed([(2, arrived("x"), []), (3, arrived("y"), [])], decisions)

    picture = decisions.snapshot(RequestId(ID))
    assert picture is not None
    assert picture.history.tenant == "second"


def test_reused_request_id_is_evicted_with_its_latest_rejection() -> None:
    refusals: list[Moment] = []
    for moment, name in ((1, RequestId(ID)), (2, RequestId("a")), (3, RequestId("b"))):
        refusals.append((moment, arrived(name), [replace(over(Outcome.SHED, attempts=0), request_id=name)]))
    admitted: list[Moment] = [(4 + number, arrived(f"x{number}"), []) for number in range(3)]
    decisions = observed([(0, arrived(), []), *refusals, *admitted], small())

    assert decisions.snapshot(RequestId(ID)) is None
    assert decisions.retention().kept == 3 + 2


def test_steps_are_bounded_and_include_the_end() -> None:
    retries: list[Moment] = [
        (number, TimerFired(), [sent(attempt=number), Abort(ID, number, "main/2", "again")])
        for number in range(1, STEPS_MAX)
    ]
    data = told((0, arrived(), []), *retries, (99, CALLER_LEFT, [over(Outcome.CANCELLED, "the client disconnected")]))

    assert [step["kind"] for step in data["steps"]].count("left_out") == 1
    assert len(data["steps"]) < STEPS_MAX + 10
    assert data["outcome"] == "cancelled"


def test_long_texts_from_clients_and_engines_are_truncated() -> None:
    long = "x" * 100_000
    asked = arrived(model=long, requested_class=long, service_tier=long, model_tier=long)
    ended = AttemptEnded(ID, 1, AttemptEnding.FAILED, long)
    decisions = observed([(0, asked, [sent()]), (1, ended, [over(Outcome.ENGINE_ERROR, long)])])
    kept = decisions._histories[RequestId(ID)]
    decisions.observe(TimerFired(), [Eject("main/2", at(10), long)], at(1))
    [_, (_, attempt), (_, end)] = kept.steps
    [(_, ejection)] = decisions._ejections

    assert {len(kept.model), len(kept.requested_class or ""), len(kept.model_tier or "")} == {NAME_CHARS_MAX}
    assert len(ejection.reason) == REASON_CHARS_MAX
    assert (len(attempt.detail), len(end.reason)) == (REASON_CHARS_MAX, REASON_CHARS_MAX)  # type: ignore[union-attr]


def test_request_history_uses_less_than_3_kb() -> None:
    """The ticket with its prefix hashes and idempotency key is not stored."""
    decisions, lives = DecisionHistory(), 500
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(lives):
        life = f"req_{number:024x}"
        ticket = arrived(
            life, prefix_hashes=bytes(512 + number % 2), idempotency_key=f"{number:0>255}", model="m" * 10_000
        )
        decisions.observe(ticket, [sent(life)], at(number))
        decisions.observe(FirstToken(life, 1), [], at(number))
        decisions.observe(AttemptEnded(life, 1, AttemptEnding.COMPLETED), [], at(number))
    del ticket
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (after - before) / lives < 3_000


def test_docs_list_the_limits_and_every_kind_of_step() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "explain.md").read_text()
    known = {step["kind"] for history in HISTORIES.values() for step in told(*history)["steps"]}

    assert f"the last {REQUESTS_MAX:,} requests" in page
    assert f"the last {REJECTED_MAX:,} requests rejected on arrival" in " ".join(page.split())
    assert [kind for kind in sorted(known | {"open"}) if f"`{kind}`" not in page] == []


def test_history_contains_no_prefix_hashes_or_idempotency_keys() -> None:
    decisions = observed([(0, arrived(prefix_hashes=b"canary-hash", idempotency_key="canary-key"), [])])
    kept = decisions._histories[RequestId(ID)]

    assert "canary" not in "".join(repr(getattr(kept, name)) for name in dir(kept) if not name.startswith("__"))


# Unknown requests


def test_unknown_request_error_mentions_the_age_of_the_oldest_known_one() -> None:
    nothing = unknown_request(RequestId("x"), DecisionHistory().retention(), at(0))
    something = unknown_request(RequestId("x"), observed([(0, arrived(), [])]).retention(), at(840))

    assert nothing["request_id"] == "x"
    assert "rejected on arrival. Configure `records`" in str(nothing["error"])
    assert "rejected on arrival, the oldest from 840 s ago. Configure" in str(something["error"])


@pytest.mark.parametrize(
    ("length", "said"),
    [(48 * 3_600, "2 days"), (24 * 3_600, "24 hours"), (3_600, "60 minutes"), (119, "119 s"), (1, "1 s")],
)
def test_unknown_request_error_mentions_the_file_retention(length: int, said: str) -> None:
    told = unknown_request(
        RequestId("x"), DecisionHistory().retention(), at(0), file_retention_ns=Duration(length * SECOND)
    )

    assert f"Requests are kept in files for {said} or up to their size limit" in str(told["error"])


# Robustness


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
def test_explanation_succeeds_for_any_event_sequence(happenings: list[Any]) -> None:
    history = [(0, arrived(), []), *((number, *each) for number, each in enumerate(happenings))]
    data = told(*history, now=1_000)

    assert data["summary"].startswith(f"{ID} (tenant acme")
    assert all(step["event"] for step in data["steps"])
    assert all(isinstance(step["at_ms"], float) for step in data["steps"])


def test_all_requests_sent_during_the_wait_are_counted() -> None:
    data = told(*others(300, "bolt", first=0), (0, arrived(), []), (30, TimerFired(), [sent(waited=30)]))

    assert data["steps"][1]["waited_ms"] == 30 * SECOND / 1e6
    assert "300 other requests were sent to pool main (300 from bolt)" in data["summary"]


def test_explanation_names_the_route() -> None:
    explanation = told((0, arrived(), (replace(sent(), route="candidate"),)))

    assert 'took route "candidate"' in explanation["summary"]
    assert [step["route"] for step in explanation["steps"] if step["kind"] == "dispatched"] == ["candidate"]
    assert explanation["steps"][1]["reason"].startswith("route candidate; ")
