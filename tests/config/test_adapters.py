"""LoRA adapters in the configuration."""

import pytest

from headgate.config.settings import AdapterSettings
from headgate.config.summary import summary_data
from headgate.model.policy import Model
from headgate.model.units import MILLISECOND
from tests.config.builders import problems_of, settings_of, warnings_of

POOL = """
pools:
  base: {engine: %s, in_flight_max: 64, endpoints: "http://127.0.0.1:8081", served_model: smollm2%s}
models: {smollm2: base}
tenants: {demo: {models: [%s]}}
anonymous_tenant: demo
"""


def config(pool: str = "", *, engine: str = "vllm", models: str = "") -> str:
    return POOL % (engine, pool, models)


def test_pools_have_no_adapters_by_default() -> None:
    settings = settings_of(config())

    assert (settings.pools[0].adapters, settings.pools[0].discover_adapters) == ((), False)
    assert (settings.policy.pools[0].max_lora, settings.policy.pools[0].discovers_adapters) == (None, False)
    assert settings.policy.routing.adapter_load_penalty_ns == 200 * MILLISECOND


def test_each_adapter_is_a_model() -> None:
    adapters = ", max_lora: 2, adapters: [sql-lora, {name: chat-lora, model: chat, source: /adapters/chat}]"
    settings = settings_of(config(adapters, models="chat, sql-lora"))

    assert settings.policy.models == (
        Model("smollm2", ("base",)),
        Model("sql-lora", ("base",), adapter="sql-lora"),
        Model("chat", ("base",), adapter="chat-lora"),
    )
    assert settings.policy.pools[0].max_lora == 2
    assert settings.pools[0].adapters == (
        AdapterSettings("sql-lora", "sql-lora"),
        AdapterSettings("chat-lora", "chat", "/adapters/chat"),
    )
    models = summary_data(settings)["models"]
    assert isinstance(models, dict)
    assert models["chat"]["adapter"] == "chat-lora"


def test_adapter_in_several_pools_is_one_model() -> None:
    text = """
    pools:
      a: {engine: vllm, in_flight_max: 4, endpoints: "http://a:1", served_model: x, adapters: [l]}
      b: {engine: vllm, in_flight_max: 4, endpoints: "http://b:1", served_model: x, adapters: [l]}
    models: {}
    tenants: {demo: {}}
    anonymous_tenant: demo
    """
    settings = settings_of(text)

    assert settings.policy.models == (Model("l", ("a", "b"), adapter="l"),)
    assert warnings_of(text) == []


def test_models_of_tenants_may_be_discovered_adapters() -> None:
    assert problems_of(config(", discover_adapters: true", models="any-lora")) == []
    assert problems_of(config(models="any-lora")) != []


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (", adapters: [a, a]", 'pools.base.adapters[1].name: adapter "a" is listed twice; remove one'),
        (", adapters: [smollm2]", "is the pool's served_model"),
        (", adapters: [{name: a, model: smollm2}]", 'model "smollm2" is also in models'),
        (", adapters: [{name: a, model: x}, {name: b, model: x}]", 'model "x" is also adapter "a"'),
        (', adapters: ["a b"]', "pools.base.adapters[0].name: must have 1 to 256 characters"),
        (", adapters: [{name: a, model: -x}]", "pools.base.adapters[0].model: must have 1 to 256 characters"),
    ],
)
def test_invalid_adapters_are_reported(pool: str, said: str) -> None:
    problems = problems_of(config(pool))

    assert any(said in each for each in problems), problems


@pytest.mark.parametrize("setting", ["adapters: [a]", "discover_adapters: true"])
def test_engine_without_adapters_is_reported(setting: str) -> None:
    [problem] = problems_of(config(f", {setting}", engine="llamacpp"))

    assert f'pools.base.{setting.split(":", maxsplit=1)[0]}: is not available for engine "llamacpp"' in problem


def test_limit_without_adapters_is_a_warning() -> None:
    [warning] = warnings_of(config(", max_lora: 2"))

    assert "pools.base.max_lora: has no effect" in warning
