"""Decomposition of a cost change into causes that add up to the change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.ledger.reports.drift import CAUSE_TEXT, DayCost, GroupCost, PoolDayCost, RequestGroup, drift, sentence

ACME = RequestGroup("acme", "chat", "interactive", "small")
BETA = RequestGroup("beta", "chat", "batch", "small")
LARGE = RequestGroup("beta", "chat-large", "batch", "large")


def spent(
    requests: float = 1_000,
    *,
    prompt: float = 800,
    cached: float = 0.25,
    answer: float = 300,
    input_us: float = 40,
    output_us: float = 2_000,
    price: float = 0.7,
    in_vain: float = 0.02,
) -> GroupCost:
    """Amount spent on `requests` requests.

    `prompt` and `answer` are tokens per request, `cached` is the cached part of the prompt, `input_us` and `output_us`
    are microseconds per token, `price` is per microsecond, and `in_vain` is the share of wasted attempts.
    """
    tokens_in, tokens_out = requests * prompt, requests * answer
    time_in = input_us * (tokens_in - 0.9 * cached * tokens_in)
    time_out = output_us * tokens_out
    overhead = 0.2 * (time_in + time_out)
    kept = price * (time_in + time_out + overhead)
    return GroupCost(
        requests,
        tokens_in,
        cached * tokens_in,
        tokens_out,
        time_in + time_out + overhead,
        price * time_in,
        price * time_out,
        price * overhead,
        in_vain * kept,
    )


def day(acme: GroupCost | None = None, **changes: float) -> DayCost:
    """A day with three kinds of requests. `changes` applies to all of them, unless `acme` replaces the first one."""
    kinds = {
        ACME: acme or spent(**changes),
        BETA: spent(**{"answer": 120, **changes}),
        LARGE: spent(**{"requests": 200, "price": 2.1, "output_us": 5_000, **changes}),
    }
    pools = {"small": PoolDayCost(2.5e9, 2e8, 1e7), "large": PoolDayCost(7.5e9, 5e7, 0)}
    return DayCost(kinds, pools, unexplained=5e6)


BEFORE = day()
CHANGED = {
    "traffic": replace(BEFORE, groups={kind: each.scaled(1.4) for kind, each in BEFORE.groups.items()}),
    "tokens_in": day(acme=spent(prompt=2_400)),
    "tokens_out": day(acme=spent(answer=450)),
    "cache": day(acme=spent(cached=0.9)),
    "batching": day(acme=spent(input_us=48, output_us=2_400)),
    "price": day(acme=spent(price=0.9)),
    "retries": day(acme=spent(in_vain=0.3)),
    "mix": replace(
        BEFORE,
        groups={
            ACME: BEFORE.groups[ACME].scaled(0.7),
            BETA: BEFORE.groups[BETA],
            LARGE: BEFORE.groups[LARGE].scaled(2.5),
        },
    ),
    "idle": replace(BEFORE, pools={**BEFORE.pools, "small": PoolDayCost(2.5e9, 5e8, 1e7)}),
    "unready": replace(BEFORE, pools={**BEFORE.pools, "small": PoolDayCost(2.5e9, 2e8, 1e8)}),
    "unexplained": replace(BEFORE, unexplained=5e7),
}


def test_every_cause_has_a_description_and_an_example() -> None:
    assert CHANGED.keys() == CAUSE_TEXT.keys()


@pytest.mark.parametrize("cause", CHANGED)
def test_single_changed_factor_explains_the_entire_change(cause: str) -> None:
    parts, before, today = drift(BEFORE, CHANGED[cause])

    [part] = [each for each in parts if each.cause == cause]
    assert abs(today - before) > 0.001 * before
    assert part.change_nano_usd == pytest.approx(today - before, rel=1e-6)
    assert parts[0] is part


def test_more_idle_time_at_a_higher_price_is_attributed_to_both_causes() -> None:
    dearer = replace(BEFORE, pools={**BEFORE.pools, "small": PoolDayCost(5e9, 8e8, 2e7)})
    parts = {each.cause: each for each in drift(BEFORE, dearer)[0]}

    assert parts.keys() == {"price", "idle"}
    assert parts["price"].change_nano_usd > 0
    assert parts["idle"].change_nano_usd > 0
    assert parts["idle"].name == "small"


@pytest.mark.parametrize(
    ("cause", "kind", "name"),
    [
        ("tokens_out", "tenant", "acme"),
        ("tokens_in", "tenant", "acme"),
        ("mix", "model", "chat-large"),
        ("idle", "pool", "small"),
        ("retries", "pool", "small"),
    ],
)
def test_largest_contributor_to_a_cause_is_named(cause: str, kind: str, name: str) -> None:
    [part] = [each for each in drift(BEFORE, CHANGED[cause])[0] if each.cause == cause]

    assert (part.kind, part.name) == (kind, name)


def test_sentence_lists_the_largest_causes() -> None:
    longer = day(acme=spent(answer=600, in_vain=0.25))
    parts, before, today = drift(BEFORE, longer)
    said = sentence(parts, before=before, today=today)

    assert said.startswith(f"cost rose {100 * (today - before) / before:.0f}%: ")
    assert "from longer outputs for tenant acme, " in said
    assert said.endswith("from retries for pool small")


def test_opposing_cause_is_listed_with_a_minus_sign() -> None:
    fewer = replace(CHANGED["price"], groups={k: s.scaled(0.5) for k, s in CHANGED["price"].groups.items()})
    parts, before, today = drift(BEFORE, fewer)
    said = sentence(parts, before=before, today=today)

    assert said.startswith("cost fell ")
    assert "from fewer requests" in said
    assert ", -" in said
    assert "from higher prices" in said


def test_unchanged_day_has_no_causes() -> None:
    parts, before, today = drift(BEFORE, BEFORE)

    assert parts == []
    assert sentence(parts, before=before, today=today) == "cost is unchanged"
    assert "no cost from earlier days" in sentence([], before=0, today=5)


def test_new_or_missing_kind_is_treated_as_a_change_in_the_mix() -> None:
    without = replace(BEFORE, groups={kind: each for kind, each in BEFORE.groups.items() if kind != LARGE})
    for one, other in ((without, BEFORE), (BEFORE, without)):
        parts, before, today = drift(one, other)
        by_cause = {each.cause: each.change_nano_usd for each in parts}
        assert sum(by_cause.values()) == today - before
        assert by_cause["mix"] * (today - before) > 0
        assert by_cause.keys() == {"mix", "traffic", "retries"}


def test_token_price_change_is_attributed_only_to_the_price() -> None:
    hosted = replace(spent(), token_priced=True)
    dearer = replace(hosted, input=2 * hosted.input, output=2 * hosted.output, overhead=2 * hosted.overhead)
    dearer = replace(dearer, wasted=2 * hosted.wasted, engine_us=3 * hosted.engine_us)
    parts, before, today = drift(DayCost({ACME: hosted}, {}), DayCost({ACME: dearer}, {}))

    assert {each.cause: each.change_nano_usd for each in parts} == {"price": today - before}


def test_change_from_token_to_hourly_pricing_is_attributed_to_the_price() -> None:
    """Engine time was not charged for before, so its effect cannot be separated from that of the price."""
    dearer = spent(price=1.4)
    parts, before, today = drift(DayCost({ACME: replace(spent(), token_priced=True)}, {}), DayCost({ACME: dearer}, {}))

    assert {each.cause: each.change_nano_usd for each in parts} == {"price": today - before}


amounts = st.one_of(st.just(0.0), st.floats(1, 1e12))
kinds = st.dictionaries(
    st.builds(RequestGroup, st.sampled_from("ab"), st.sampled_from("mn"), st.sampled_from("xy"), st.sampled_from("pq")),
    st.builds(GroupCost, *[amounts] * 9, st.booleans()),
    max_size=6,
)
pools = st.dictionaries(st.sampled_from("pq"), st.builds(PoolDayCost, amounts, amounts, amounts))
days = st.builds(DayCost, kinds, pools, st.floats(-1e12, 1e12))


@given(days, days)
def test_causes_add_up_to_the_change_for_any_two_days(before: DayCost, today: DayCost) -> None:
    parts, cost_before, cost_today = drift(before, today)

    assert sum(each.change_nano_usd for each in parts) == cost_today - cost_before
    assert len(sentence(parts, before=cost_before, today=cost_today)) < 1_000


@given(st.sampled_from(sorted(CHANGED)), st.sampled_from(sorted(CHANGED)))
def test_reversed_comparison_gives_opposite_causes(one: str, other: str) -> None:
    there = {each.cause: each.change_nano_usd for each in drift(CHANGED[one], CHANGED[other])[0]}
    back = {each.cause: each.change_nano_usd for each in drift(CHANGED[other], CHANGED[one])[0]}

    for cause in there.keys() | back.keys():
        assert there.get(cause, 0) == pytest.approx(-back.get(cause, 0), abs=2)
