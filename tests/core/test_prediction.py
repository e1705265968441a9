"""Are answers as long as predicted, and prompts as many tokens?"""

from random import Random

import pytest

from headgate.core.prediction import MEAN_GUESS, NINETIETH_GUESS, TENANTS_MAX, Lengths, Predictions
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ModelName, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource

ACME, BOLT, M, N = TenantId("acme"), TenantId("bolt"), ModelName("m"), ModelName("n")


def asked_by(tenant: TenantId, *, api: Api = Api.CHAT, prompt_bytes: int = 400) -> Ticket:
    return Ticket(RequestId("r"), api, M, tenant, stream=True, prompt_bytes=prompt_bytes)


def test_before_anything_is_known_there_is_a_guess() -> None:
    assert Predictions().output_tokens(asked_by(ACME), M) == (MEAN_GUESS, NINETIETH_GUESS)


def test_a_tenant_of_which_little_is_known_is_taken_to_be_like_all_together() -> None:
    predictions = Predictions()
    for _ in range(20):
        predictions.learn_output(BOLT, M, 1_000)

    mean, most = predictions.output_tokens(asked_by(ACME), M)
    assert (mean, most >= 1_000) == (1_000, True)
    assert predictions.output_tokens(asked_by(ACME), N) == (MEAN_GUESS, NINETIETH_GUESS)


def test_a_tenant_that_is_known_is_taken_by_its_own_record() -> None:
    predictions = Predictions()
    for _ in range(20):
        predictions.learn_output(BOLT, M, 1_000)
        predictions.learn_output(ACME, M, 10)

    assert predictions.output_tokens(asked_by(ACME), M)[0] == 10
    assert predictions.output_tokens(asked_by(BOLT), M)[0] == 1_000


@pytest.mark.parametrize("percent", [50, 90, 99])
def test_quantiles_are_within_a_bucket_of_the_truth(percent: int) -> None:
    chance, lengths = Random(1), Lengths()
    drawn = sorted(round(chance.lognormvariate(5, 1)) + 1 for _ in range(500))
    for each in drawn:
        lengths.learn(each)
    truth = drawn[-(-len(drawn) * percent // 100) - 1]

    assert truth <= lengths.quantile(percent) <= truth * 1.25 + 1


def test_old_lengths_are_forgotten() -> None:
    lengths = Lengths()
    for _ in range(1_000):
        lengths.learn(100)
    for _ in range(5_000):
        lengths.learn(10)

    assert lengths.mean_and_ninetieth() == (10, 10)
    assert lengths.total <= 512


def test_an_answer_beyond_all_buckets_counts_for_the_last() -> None:
    lengths = Lengths()
    lengths.learn(10_000_000)

    assert lengths.quantile(90) == 131_072
    assert lengths.mean_and_ninetieth() == (10_000_000, 131_072)


def test_the_records_of_tenants_are_bounded() -> None:
    predictions = Predictions()
    for number in range(TENANTS_MAX + 10):
        predictions.learn_output(TenantId(f"t{number}"), M, 10)

    assert len(predictions._of_tenant) == TENANTS_MAX


def test_tokens_follow_bytes_as_the_engine_counts_them() -> None:
    predictions = Predictions()
    assert predictions.prompt_tokens(M, 400) == 100
    predictions.learn_prompt(M, prompt_bytes=3_000, tokens=1_000)

    assert predictions.prompt_tokens(M, 300) == 100
    assert predictions.prompt_tokens(N, 400) == 100
    assert predictions.prompt_tokens(M, 0) == 1


def test_a_prompt_of_nothing_teaches_nothing() -> None:
    predictions = Predictions()
    predictions.learn_prompt(M, prompt_bytes=0, tokens=5)
    predictions.learn_prompt(M, prompt_bytes=5, tokens=0)

    assert predictions.prompt_tokens(M, 400) == 100


def test_what_was_learned_of_prompts_fades() -> None:
    predictions = Predictions()
    for _ in range(200):
        predictions.learn_prompt(M, prompt_bytes=4_000_000, tokens=1_000_000)
    for _ in range(400):
        predictions.learn_prompt(M, prompt_bytes=4_000_000, tokens=2_000_000)

    assert predictions.prompt_tokens(M, 4_000) == pytest.approx(2_000, rel=0.02)


def test_several_answers_are_learned_as_so_many_of_one_length() -> None:
    predictions = Predictions()
    for _ in range(20):
        predictions.learn(asked_by(ACME, prompt_bytes=300), M, Usage(100, 80, 0, UsageSource.ENGINE), answers=4)

    assert predictions.output_tokens(asked_by(ACME), M)[0] == 20
    assert predictions.prompt_tokens(M, 300) == 100


@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.INFER])
def test_embeddings_and_tensors_have_no_answer_to_predict(api: Api) -> None:
    predictions = Predictions()
    asked = asked_by(ACME, api=api, prompt_bytes=300)
    predictions.learn(asked, M, Usage(100, 0, 0, UsageSource.ENGINE), answers=1)

    assert predictions.output_tokens(asked, M) == (0, 0)
    assert predictions.output_tokens(asked_by(ACME), M) == (MEAN_GUESS, NINETIETH_GUESS)
    assert predictions.prompt_tokens(M, 300) == 100
