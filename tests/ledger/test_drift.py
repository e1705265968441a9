"""Does each cause get the part of a change that it has, and do the parts come to the change?"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.ledger.reports.drift import WORDS, Day, Kind, PoolDay, Spent, drift, sentence

ACME = Kind("acme", "chat", "interactive", "small")
BETA = Kind("beta", "chat", "batch", "small")
LARGE = Kind("beta", "chat-large", "batch", "large")


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
) -> Spent:
    """What so many requests take: by tokens of each, time per token, price per microsecond, and the part in vain."""
    tokens_in, tokens_out = requests * prompt, requests * answer
    time_in = input_us * (tokens_in - 0.9 * cached * tokens_in)
    time_out = output_us * tokens_out
    overhead = 0.2 * (time_in + time_out)
    kept = price * (time_in + time_out + overhead)
    return Spent(
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


def day(acme: Spent | None = None, **changes: float) -> Day:
    """Three kinds of requests, of which each is changed alike."""
    kinds = {
        ACME: acme or spent(**changes),
        BETA: spent(**{"answer": 120, **changes}),
        LARGE: spent(**{"requests": 200, "price": 2.1, "output_us": 5_000, **changes}),
    }
    pools = {"small": PoolDay(2.5e9, 2e8, 1e7), "large": PoolDay(7.5e9, 5e7, 0)}
    return Day(kinds, pools, unexplained=5e6)


BEFORE = day()
CHANGED = {
    "traffic": replace(BEFORE, kinds={kind: each.scaled(1.4) for kind, each in BEFORE.kinds.items()}),
    "tokens_in": day(acme=spent(prompt=2_400)),
    "tokens_out": day(acme=spent(answer=450)),
    "cache": day(acme=spent(cached=0.9)),
    "batching": day(acme=spent(input_us=48, output_us=2_400)),
    "price": day(acme=spent(price=0.9)),
    "retries": day(acme=spent(in_vain=0.3)),
    "mix": replace(
        BEFORE,
        kinds={
            ACME: BEFORE.kinds[ACME].scaled(0.7),
            BETA: BEFORE.kinds[BETA],
            LARGE: BEFORE.kinds[LARGE].scaled(2.5),
        },
    ),
    "idle": replace(BEFORE, pools={**BEFORE.pools, "small": PoolDay(2.5e9, 5e8, 1e7)}),
    "unready": replace(BEFORE, pools={**BEFORE.pools, "small": PoolDay(2.5e9, 2e8, 1e8)}),
    "unexplained": replace(BEFORE, unexplained=5e7),
}


def test_every_cause_has_words_and_a_day_here() -> None:
    assert CHANGED.keys() == WORDS.keys()


@pytest.mark.parametrize("cause", CHANGED)
def test_what_alone_has_changed_gets_all_of_the_change(cause: str) -> None:
    parts, before, today = drift(BEFORE, CHANGED[cause])

    [part] = [each for each in parts if each.cause == cause]
    assert abs(today - before) > 0.001 * before
    assert part.change_nano_usd == pytest.approx(today - before, rel=1e-6)
    assert parts[0] is part


def test_more_idle_time_at_a_higher_price_is_both() -> None:
    dearer = replace(BEFORE, pools={**BEFORE.pools, "small": PoolDay(5e9, 8e8, 2e7)})
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
def test_the_one_that_contributes_most_is_named(cause: str, kind: str, name: str) -> None:
    [part] = [each for each in drift(BEFORE, CHANGED[cause])[0] if each.cause == cause]

    assert (part.kind, part.name) == (kind, name)


def test_a_sentence_says_it() -> None:
    longer = day(acme=spent(answer=600, in_vain=0.25))
    parts, before, today = drift(BEFORE, longer)
    said = sentence(parts, before=before, today=today)

    assert said.startswith(f"cost rose {100 * (today - before) / before:.0f} %: ")
    assert "from longer outputs of tenant acme, " in said
    assert said.endswith("from retries of pool small")


def test_what_works_against_the_whole_has_a_sign() -> None:
    fewer = replace(CHANGED["price"], kinds={k: s.scaled(0.5) for k, s in CHANGED["price"].kinds.items()})
    parts, before, today = drift(BEFORE, fewer)
    said = sentence(parts, before=before, today=today)

    assert said.startswith("cost fell ")
    assert "from fewer requests" in said
    assert ", -" in said
    assert "from higher prices" in said


def test_a_day_like_those_before_it_has_nothing_to_tell() -> None:
    parts, before, today = drift(BEFORE, BEFORE)

    assert parts == []
    assert sentence(parts, before=before, today=today) == "cost is the same"
    assert "nothing before" in sentence([], before=0, today=5)


def test_a_kind_that_is_new_or_gone_is_a_matter_of_the_mix() -> None:
    without = replace(BEFORE, kinds={kind: each for kind, each in BEFORE.kinds.items() if kind != LARGE})
    for one, other in ((without, BEFORE), (BEFORE, without)):
        parts, before, today = drift(one, other)
        by_cause = {each.cause: each.change_nano_usd for each in parts}
        assert sum(by_cause.values()) == today - before
        assert by_cause["mix"] * (today - before) > 0
        assert by_cause.keys() == {"mix", "traffic", "retries"}


def test_what_is_paid_by_the_token_has_a_price_and_no_engine_time() -> None:
    hosted = replace(spent(), hosted=True)
    dearer = replace(hosted, input=2 * hosted.input, output=2 * hosted.output, overhead=2 * hosted.overhead)
    dearer = replace(dearer, in_vain=2 * hosted.in_vain, engine_us=3 * hosted.engine_us)
    parts, before, today = drift(Day({ACME: hosted}, {}), Day({ACME: dearer}, {}))

    assert {each.cause: each.change_nano_usd for each in parts} == {"price": today - before}


def test_a_pool_that_turns_from_the_token_to_the_hour_has_another_price() -> None:
    """Its engine time was not paid before, so it cannot be told apart from the price."""
    dearer = spent(price=1.4)
    parts, before, today = drift(Day({ACME: replace(spent(), hosted=True)}, {}), Day({ACME: dearer}, {}))

    assert {each.cause: each.change_nano_usd for each in parts} == {"price": today - before}


amounts = st.one_of(st.just(0.0), st.floats(1, 1e12))
kinds = st.dictionaries(
    st.builds(Kind, st.sampled_from("ab"), st.sampled_from("mn"), st.sampled_from("xy"), st.sampled_from("pq")),
    st.builds(Spent, *[amounts] * 9, st.booleans()),
    max_size=6,
)
pools = st.dictionaries(st.sampled_from("pq"), st.builds(PoolDay, amounts, amounts, amounts))
days = st.builds(Day, kinds, pools, st.floats(-1e12, 1e12))


@given(days, days)
def test_whatever_the_days_are_the_parts_come_to_the_change(before: Day, today: Day) -> None:
    parts, cost_before, cost_today = drift(before, today)

    assert sum(each.change_nano_usd for each in parts) == cost_today - cost_before
    assert len(sentence(parts, before=cost_before, today=cost_today)) < 1_000


@given(st.sampled_from(sorted(CHANGED)), st.sampled_from(sorted(CHANGED)))
def test_there_and_back_the_parts_are_opposite(one: str, other: str) -> None:
    there = {each.cause: each.change_nano_usd for each in drift(CHANGED[one], CHANGED[other])[0]}
    back = {each.cause: each.change_nano_usd for each in drift(CHANGED[other], CHANGED[one])[0]}

    for cause in there.keys() | back.keys():
        assert there.get(cause, 0) == pytest.approx(-back.get(cause, 0), abs=2)
