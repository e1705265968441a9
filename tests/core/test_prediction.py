"""Predicting response lengths and prompt tokens."""

from dataclasses import replace
from random import Random

import pytest

from headgate.core.counters import LengthsCounter, PromptCounter
from headgate.core.prediction import (
    LENGTH_BOUNDS,
    MEAN_GUESS,
    P90_GUESS,
    TENANTS_MAX,
    TRUSTED_SAMPLES_MIN,
    LengthHistogram,
    Predictions,
)
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ModelName, RequestId, TenantId
from headgate.model.usage import OUTPUT_TOKENS_SLACK, TEMPLATE_TOKENS_MAX, Usage, UsageSource

ACME, BOLT, M, N = TenantId("acme"), TenantId("bolt"), ModelName("m"), ModelName("n")


def asked_by(tenant: TenantId, *, api: Api = Api.CHAT, prompt_bytes: int = 400) -> Ticket:
    return Ticket(RequestId("r"), api, M, tenant, stream=True, prompt_bytes=prompt_bytes)


def test_default_length_is_predicted_without_observations() -> None:
    assert Predictions().output_tokens(asked_by(ACME), M) == (MEAN_GUESS, P90_GUESS)


def learned(
    predictions: Predictions,
    tenant: TenantId,
    *,
    times: int = 1,
    prompt_bytes: int = 400,
    tokens: int = 100,
    output: int = 10,
) -> None:
    asked = asked_by(tenant, prompt_bytes=prompt_bytes)
    for _ in range(times):
        predictions.learn(asked, M, Usage(tokens, output, 0, UsageSource.ENGINE), answers=1, output_limit=None)


def test_known_tenant_is_predicted_from_its_own_responses() -> None:
    predictions = Predictions()
    learned(predictions, BOLT, times=20, output=1_000)
    learned(predictions, ACME, times=20, output=10)

    assert predictions.output_tokens(asked_by(ACME), M)[0] == 10
    assert predictions.output_tokens(asked_by(BOLT), M)[0] == 1_000
    assert predictions.output_tokens(asked_by(ACME), N) == (MEAN_GUESS, P90_GUESS)


def test_many_tenants_together_change_the_prediction_for_a_new_tenant() -> None:
    predictions = Predictions()
    for number in range(1_000):
        learned(predictions, TenantId(f"t{number}"), times=20, output=300, prompt_bytes=900, tokens=300)

    mean, most = predictions.output_tokens(asked_by(ACME), M)
    assert mean == pytest.approx(300, rel=0.05)
    assert most >= 300
    assert predictions.prompt_tokens(asked_by(ACME, prompt_bytes=300), M) == pytest.approx(100, rel=0.05)


def test_single_tenant_hardly_changes_the_prediction_for_a_new_tenant() -> None:
    predictions = Predictions()
    learned(predictions, BOLT, times=5_000, output=100_000, prompt_bytes=4_000, tokens=4_000)

    mean, most = predictions.output_tokens(asked_by(ACME), M)
    assert MEAN_GUESS < mean < 1.1 * MEAN_GUESS
    assert P90_GUESS < most < 1.1 * P90_GUESS
    assert 100 <= predictions.prompt_tokens(asked_by(ACME), M) < 110


def test_single_wrong_length_hardly_changes_tenant_estimate() -> None:
    predictions = Predictions()
    learned(predictions, ACME, times=500, output=100)
    learned(predictions, ACME, output=2_000_000_000)

    assert predictions.output_tokens(asked_by(ACME), M)[0] < 110


def test_single_wrong_token_rate_changes_tenant_estimate_by_at_most_a_factor_of_two() -> None:
    predictions = Predictions()
    learned(predictions, ACME, prompt_bytes=1_000_000, tokens=1_000_000)
    assert predictions.prompt_tokens(asked_by(ACME), M) <= 200
    learned(predictions, BOLT, prompt_bytes=1_000_000, tokens=1)
    assert predictions.prompt_tokens(asked_by(BOLT), M) >= 50


@pytest.mark.parametrize(
    ("usage", "most"),
    [
        (Usage(1_000_000_000, 5, 0, UsageSource.ENGINE), None),
        (Usage(400 + TEMPLATE_TOKENS_MAX + 1, 5, 0, UsageSource.ENGINE), None),
        (Usage(100, 20 + OUTPUT_TOKENS_SLACK + 1, 0, UsageSource.ENGINE), 20),
        (Usage(-1, 5, 0, UsageSource.ENGINE), None),
        (Usage(100, -5, 0, UsageSource.ENGINE), None),
        (Usage(100, 5, -1, UsageSource.ENGINE), None),
    ],
)
def test_impossible_usage_is_not_learned(usage: Usage, most: int | None) -> None:
    predictions = Predictions()
    for _ in range(50):
        predictions.learn(asked_by(ACME), M, usage, answers=1, output_limit=most)

    assert predictions.lengths() == predictions.prompts() == ()


@pytest.mark.parametrize(
    ("usage", "most"),
    [
        (Usage(400 + TEMPLATE_TOKENS_MAX, 5, 0, UsageSource.ENGINE), None),
        (Usage(100, 20 + OUTPUT_TOKENS_SLACK, 0, UsageSource.ENGINE), 20),
    ],
)
def test_largest_possible_usage_is_learned(usage: Usage, most: int | None) -> None:
    predictions = Predictions()
    predictions.learn(asked_by(ACME), M, usage, answers=1, output_limit=most)

    assert len(predictions.lengths()) == len(predictions.prompts()) == 1


@pytest.mark.parametrize(("tokens", "known"), [(15_500, 1), (65_536, 1), (1_000_000, 0)])
def test_media_may_have_more_tokens_than_bytes_up_to_maximum(tokens: int, known: int) -> None:
    predictions, usage = Predictions(), Usage(tokens, 5, 0, UsageSource.ENGINE)
    photo = replace(asked_by(ACME, prompt_bytes=4_200), has_media=True)
    predictions.learn(photo, M, usage, answers=1, output_limit=None)

    assert len(predictions.lengths()) == len(predictions.prompts()) == known


@pytest.mark.parametrize(("tokens", "expected"), [(1, 400 // 64), (1_400, 2 * 400)])
def test_learned_tokens_per_byte_stay_within_limits(tokens: int, expected: int) -> None:
    predictions, asked = Predictions(), asked_by(ACME, prompt_bytes=400)
    for _ in range(5_000):
        predictions.learn(asked, M, Usage(tokens, 5, 0, UsageSource.ENGINE), answers=1, output_limit=None)

    assert predictions.prompt_tokens(asked, M) == pytest.approx(expected, abs=2)


def test_90th_percentile_is_accurate_to_within_one_bucket() -> None:
    chance, lengths = Random(1), LengthHistogram()
    drawn = sorted(round(chance.lognormvariate(5, 1)) + 1 for _ in range(500))
    for each in drawn:
        lengths.learn(each)
    truth = drawn[-(-len(drawn) * 90 // 100) - 1]

    assert truth <= lengths.mean_and_p90()[1] <= truth * 1.25 + 1


def test_90th_percentile_follows_every_change() -> None:
    chance, lengths, restored = Random(2), LengthHistogram(), LengthHistogram()
    for number in range(2_000):
        # The usual length changes from time to time, so that the percentile moves up and down.
        lengths.learn(round(chance.lognormvariate(number // 300 % 3 + 3, 1)) + 1)
        counted = [bucket for bucket, count, _ in lengths.buckets() for _ in range(count)]
        expected = LENGTH_BOUNDS[counted[-(-len(counted) * 90 // 100) - 1]]
        restored.restore(lengths.buckets())

        assert lengths.mean_and_p90()[1] == restored.mean_and_p90()[1] == expected


def test_old_lengths_are_forgotten() -> None:
    lengths = LengthHistogram()
    for _ in range(1_000):
        lengths.learn(100)
    for _ in range(5_000):
        lengths.learn(10)

    assert lengths.mean_and_p90() == (10, 10)
    assert lengths.total <= 512


def test_learned_length_is_limited_to_last_bucket() -> None:
    lengths = LengthHistogram()
    for _ in range(16):
        lengths.learn(10_000_000)
    assert lengths.mean_and_p90()[0] < 10_000
    for _ in range(2_000):
        lengths.learn(10_000_000)

    assert lengths.mean_and_p90() == (pytest.approx(131_072, rel=0.001), 131_072)


def test_least_recently_updated_tenant_is_forgotten_first() -> None:
    predictions = Predictions()
    learned(predictions, ACME, times=TRUSTED_SAMPLES_MIN, output=1_000, tokens=400)
    for number in range(TENANTS_MAX - 1):
        learned(predictions, TenantId(f"t{number}"))
    learned(predictions, ACME, output=1_000, tokens=400)
    learned(predictions, TenantId("one more"))

    names = [each.tenant for each in predictions.lengths()]
    assert (len(names), names[0], names[-2:]) == (TENANTS_MAX, "t1", ["acme", "one more"])
    for number in range(TENANTS_MAX):
        learned(predictions, TenantId(f"later {number}"))
    assert predictions.output_tokens(asked_by(ACME), M) == (MEAN_GUESS, P90_GUESS)


def test_predicted_prompt_tokens_follow_the_engines_token_rate() -> None:
    predictions = Predictions()
    assert predictions.prompt_tokens(asked_by(ACME), M) == 100
    learned(predictions, ACME, times=50, prompt_bytes=3_000, tokens=1_000)

    assert predictions.prompt_tokens(asked_by(ACME, prompt_bytes=3_000), M) == pytest.approx(1_000, rel=0.02)
    assert predictions.prompt_tokens(asked_by(ACME), N) == 100
    assert predictions.prompt_tokens(asked_by(ACME, prompt_bytes=0), M) == 1


def test_empty_prompt_is_not_learned() -> None:
    predictions = Predictions()
    learned(predictions, ACME, prompt_bytes=0, tokens=5)
    learned(predictions, ACME, prompt_bytes=5, tokens=0)

    assert predictions.prompts() == ()


def test_old_token_rates_are_forgotten() -> None:
    predictions = Predictions()
    learned(predictions, ACME, times=200, prompt_bytes=40_000, tokens=10_000)
    learned(predictions, ACME, times=400, prompt_bytes=40_000, tokens=20_000)

    assert predictions.prompt_tokens(asked_by(ACME, prompt_bytes=4_000), M) == pytest.approx(2_000, rel=0.02)


def test_multiple_choices_are_learned_by_their_mean_length() -> None:
    predictions = Predictions()
    for _ in range(20):
        usage = Usage(100, 80, 0, UsageSource.ENGINE)
        predictions.learn(asked_by(ACME, prompt_bytes=300), M, usage, answers=4, output_limit=None)

    assert predictions.output_tokens(asked_by(ACME), M)[0] == 20


@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.INFER])
def test_predicted_output_of_embeddings_and_tensors_is_zero(api: Api) -> None:
    predictions = Predictions()
    asked = asked_by(ACME, api=api, prompt_bytes=300)
    predictions.learn(asked, M, Usage(100, 0, 0, UsageSource.ENGINE), answers=1, output_limit=None)

    assert predictions.output_tokens(asked, M) == (0, 0)
    assert predictions.output_tokens(asked_by(ACME), M) == (MEAN_GUESS, P90_GUESS)
    assert predictions.prompts() == ((M, 300, 300 * 333_333, ACME),)


def test_restored_predictions_behave_like_the_originals() -> None:
    predictions, chance = Predictions(), Random(7)
    for number in range(400):
        tenant = TenantId(f"t{number % 7}")
        learned(predictions, tenant, tokens=chance.randint(50, 200), output=chance.randint(1, 900))
    successor = Predictions()
    successor.restore(predictions.lengths(), predictions.prompts())

    for number in range(20):
        for each in (predictions, successor):
            learned(each, TenantId(f"t{number % 7}"), tokens=60 + number, output=100 * number)
        asked = asked_by(TenantId(f"t{number % 9}"), prompt_bytes=10_000)
        assert successor.output_tokens(asked, M) == predictions.output_tokens(asked, M)
        assert successor.prompt_tokens(asked, M) == predictions.prompt_tokens(asked, M)
    assert (successor.lengths(), successor.prompts()) == (predictions.lengths(), predictions.prompts())


def test_restored_lengths_replace_earlier_ones() -> None:
    lengths = LengthHistogram()
    lengths.restore([(3, 50, 200)])
    assert lengths.mean_and_p90()[0] == 4
    lengths.restore([(3, 20, 60), (10, 20, 100)])

    assert (lengths.total, lengths.mean_and_p90()[0]) == (40, 4)
    assert lengths.buckets() == ((3, 20, 60), (10, 20, 100))
    assert lengths.mean_and_p90() == (4, LENGTH_BOUNDS[10])


def test_restore_ignores_totals_without_tenant() -> None:
    predictions = Predictions()
    nobody = TenantId("")
    predictions.restore([LengthsCounter(nobody, M, ((3, 50, 200),))], [PromptCounter(M, 3_000, 3_000)])

    assert predictions.lengths() == predictions.prompts() == ()


@pytest.mark.parametrize(("counted", "least"), [(1 << 61, 20_000), (-(1 << 61), 156)])
def test_impossible_restored_token_rate_is_clipped(counted: int, least: int) -> None:
    predictions = Predictions()
    predictions.restore([LengthsCounter(ACME, M, ())], [PromptCounter(M, 5_000, counted, ACME)])

    assert predictions.prompt_tokens(asked_by(ACME, prompt_bytes=10_000), M) == least


def test_impossible_restored_mean_length_is_clipped() -> None:
    predictions = Predictions()
    predictions.restore([LengthsCounter(ACME, M, ((3, 20, 1 << 61),))], [])

    assert predictions.output_tokens(asked_by(ACME), M) == (LENGTH_BOUNDS[-1], LENGTH_BOUNDS[3])
