"""Hosted providers, overflow and data residency in the configuration."""

import pytest

from headgate.config.load import parse
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.config.summary import summary_lines
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import Overflow
from headgate.model.tenant import DataResidency
from headgate.model.units import SECOND

FILE = """
pools:
  own: {engine: vllm, in_flight_max: 4, endpoints: ["http://127.0.0.1:8081"]}
  cloud:
    engine: provider
    in_flight_max: 32
    endpoints: ["https://api.example.com/openai"]
    served_model: vendor/large
    api_key: %(key)s
    api_key_header: %(header)s
    anthropic_betas: %(betas)s
    prices: [{input_per_1m_tokens: 2.5, cached_per_1m_tokens: 1.25, output_per_1m_tokens: 10}]
models:
  m: {pools: own, overflow: %(overflow)s}
tenants:
  demo: {}
  bank: {data_residency: %(residency)s}
classes:
  batch: {data_residency: local}
anonymous_tenant: demo
"""
VALUES = {
    "key": "canary-key",
    "header": "x-api-key",
    "overflow": "{pools: cloud, after: 2s}",
    "residency": "local",
    "betas": "[]",
}


def read(**values: str) -> Settings:
    text = FILE % (VALUES | values)
    return parse(text, "headgate.yaml", {}, engines=("vllm", "provider"), profiles=PROFILES)


def test_mirror_may_not_use_a_hosted_provider() -> None:
    text = (FILE % VALUES).replace("m: {pools: own,", "m: {pools: own, routes: [{pools: own, mirror: cloud}],")
    with pytest.raises(ConfigErrors) as caught:
        parse(text, "headgate.yaml", {}, engines=("vllm", "provider"), profiles=PROFILES)
    problem = 'models.m.routes[0].mirror: pool "cloud" is a hosted provider; a mirror needs pools with your own engines'
    assert problem in str(caught.value)


def problems(**values: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        read(**values)
    return [str(each).partition(": ")[2] for each in caught.value.problems]


def test_overflow_is_read() -> None:
    assert read().policy.models[0].overflow == Overflow(("cloud",), 2 * SECOND)
    listed = read(overflow="{pools: [cloud], after: 0s, classes: [batch]}").policy.models[0].overflow
    assert listed == Overflow(("cloud",), 0, ("batch",))


def test_pool_of_a_provider_is_hosted_and_has_its_own_model_name_and_key_header() -> None:
    settings = read()

    assert {each.name: each.hosted for each in settings.policy.pools} == {"own": False, "cloud": True}
    cloud = settings.pools[1]
    assert (cloud.served_model, cloud.endpoints[0].url) == ("vendor/large", "https://api.example.com/openai")
    assert cloud.engine_key is not None
    assert cloud.engine_key.as_headers() == {"x-api-key": "canary-key"}


def test_key_is_a_bearer_token_by_default() -> None:
    key = read(header="null").pools[1].engine_key

    assert key is not None
    assert key.as_headers() == {"authorization": "Bearer canary-key"}


def test_beta_features_of_a_provider_are_read() -> None:
    assert read().pools[1].anthropic_betas == ()
    assert read(betas="[thinking-1, tools-2]").pools[1].anthropic_betas == ("thinking-1", "tools-2")


def test_beta_features_have_no_effect_on_own_engines() -> None:
    text = (FILE % VALUES).replace("engine: vllm, in", "engine: vllm, anthropic_betas: [thinking-1], in")
    with pytest.raises(ConfigErrors, match=r"pools\.own\.anthropic_betas: has no effect on your own engines"):
        parse(text, "headgate.yaml", {}, engines=("vllm", "provider"), profiles=PROFILES)


def test_data_residency_is_read_for_tenants_and_classes() -> None:
    policy = read().policy

    assert {each.id: each.data_residency for each in policy.tenants} == {
        "bank": DataResidency.LOCAL,
        "demo": DataResidency.ANY,
    }
    assert {each.name: each.data_residency.value for each in policy.classes}["batch"] == "local"


def test_summary_names_the_overflow_and_never_the_key() -> None:
    lines = "\n".join(summary_lines(read()))

    assert "overflow to cloud above a wait of 2s" in lines
    assert "canary-key" not in lines


def test_key_changes_the_hash_of_the_configuration() -> None:
    assert read().hash != read(key="another-key").hash


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"overflow": "{pools: clod, after: 2s}"}, 'pool "clod" does not exist; did you mean "cloud"?'),
        (
            {"overflow": "{pools: own, after: 2s}"},
            'pool "own" is one of the pools of the model; remove it here or there',
        ),
        ({"overflow": "{pools: [], after: 2s}"}, "has no pools; list at least one, or remove overflow"),
        ({"overflow": "{pools: cloud, after: 2s, classes: chat}"}, 'class "chat" does not exist'),
        ({"overflow": "{pools: cloud}"}, "missing; set the queue wait above which a request overflows, such as 2s"),
        ({"residency": "europe"}, '"europe" is not a valid value; available: any, local'),
        ({"header": "'x key'"}, "is not the name of a header for a key; use one such as x-api-key"),
        ({"header": "Host"}, "is not the name of a header for a key; use one such as x-api-key"),
        ({"betas": "['a,b']"}, "anthropic_betas[0]: is not the name of a beta feature; use one such as"),
        ({"key": "null"}, "has no effect without api_key; set api_key, or remove it"),
    ],
)
def test_wrong_settings_are_reported(values: dict[str, str], problem: str) -> None:
    assert any(problem in each for each in problems(**values)), problems(**values)


def test_models_of_a_provider_have_prices_and_limits_of_their_own() -> None:
    text = FILE % VALUES
    other = """
  small:
    engine: provider
    in_flight_max: 8
    endpoints: ["https://api.example.com/openai"]
    served_model: vendor/small
    prices: [{input_per_1m_tokens: 0.1, output_per_1m_tokens: 0.4}]
models:
  s: small
"""
    settings = parse(text.replace("\nmodels:\n", other, 1), "f", {}, engines=("vllm", "provider"), profiles=PROFILES)

    assert [pool.endpoints[0].in_flight_max for pool in settings.pools] == [4, 32, 8]
