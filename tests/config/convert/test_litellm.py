"""Conversion of the configuration of a LiteLLM proxy."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from headgate.model.units import MINUTE, SECOND
from headgate.wire.keys import digest, format_digest
from tests.config.convert.builders import converted, error_of, notes_of, settings_of, tree_of

ONE = """\
model_list:
  - model_name: qwen3
    litellm_params: {model: hosted_vllm/Qwen/Qwen3-8B, api_base: "http://gpu-1:8000/v1"}
"""
SECRET = b"0123456789abcdef0123456789abcdef"


def one_with(*lines: str) -> str:
    return ONE + "\n".join(lines) + "\n"


def deployment(parameters: str, name: str = "m", more: str = "") -> str:
    return f"  - {{model_name: {name}, litellm_params: {{{parameters}}}{more}}}\n"


def test_deployments_of_a_model_become_endpoints_of_one_pool() -> None:
    tree = tree_of(
        "model_list:\n"
        + deployment('model: hosted_vllm/Qwen/Qwen3-8B, api_base: "http://gpu-1:8000/v1"', "qwen3")
        + deployment('model: hosted_vllm/Qwen/Qwen3-8B, api_base: "http://gpu-2:8000/v1/"', "qwen3")
    )

    assert tree["pools"] == {
        "qwen3": {
            "engine": "vllm",
            "served_model": "Qwen/Qwen3-8B",
            "in_flight_max": 64,
            "endpoints": ["http://gpu-1:8000", "http://gpu-2:8000"],
        }
    }
    assert tree["models"] == {"qwen3": "qwen3"}
    assert tree["anonymous_tenant"] == "everyone"


def test_result_listens_only_on_this_machine() -> None:
    assert tree_of(ONE)["listen"] == "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("parameters", "engine", "served", "url"),
    [
        ("model: openai/llama, api_base: 'http://h:1/v1'", "openai_compatible", "llama", "http://h:1"),
        ("model: openai/gpt-4o", "openai_compatible", "gpt-4o", "https://api.openai.com"),
        ("model: gpt-4o", "openai_compatible", "gpt-4o", "https://api.openai.com"),
        ("model: meta-llama/L3, api_base: 'http://h:1'", "openai_compatible", "meta-llama/L3", "http://h:1"),
        (
            "model: meta-llama/L3, custom_llm_provider: hosted_vllm, api_base: 'http://h:1'",
            "vllm",
            "meta-llama/L3",
            "http://h:1",
        ),
        ("model: ollama/qwen3:8b, api_base: 'http://h:11434'", "openai_compatible", "qwen3:8b", "http://h:11434"),
    ],
)
def test_provider_determines_engine_and_served_model(parameters: str, engine: str, served: str, url: str) -> None:
    [pool] = tree_of("model_list:\n" + deployment(parameters))["pools"].values()

    assert (pool["engine"], pool["served_model"], pool["endpoints"]) == (engine, served, [url])


def test_engine_option_applies_to_generic_providers_only() -> None:
    text = (
        "model_list:\n"
        + deployment("model: openai/a, api_base: 'http://h:1'", "a")
        + deployment("model: hosted_vllm/b, api_base: 'http://h:2'", "b")
    )

    pools = tree_of(text, engine="llamacpp")["pools"]

    assert {name: pool["engine"] for name, pool in pools.items()} == {"a": "llamacpp", "b": "vllm"}


def test_models_that_share_a_deployment_share_its_pool() -> None:
    text = (
        "model_list:\n"
        + deployment("model: openai/x, api_base: 'http://h:1'", "a")
        + deployment("model: openai/x, api_base: 'http://h:2'", "a")
        + deployment("model: openai/x, api_base: 'http://h:2'", "b")
        + "router_settings: {model_group_alias: {c: a, d: {model: b, hidden: true}, e: unknown}}\n"
    )
    result = converted(text)
    models = settings_of(result).policy.models
    endpoints = {pool.name: [each.url for each in pool.endpoints] for pool in settings_of(result).pools}

    served = {model.name: sorted(url for pool in model.pools for url in endpoints[pool]) for model in models}
    assert served == {
        "a": ["http://h:1", "http://h:2"],
        "b": ["http://h:2"],
        "c": ["http://h:1", "http://h:2"],
        "d": ["http://h:2"],
    }
    assert [str(each) for each in result.notes] == [
        "source:5: router_settings.model_group_alias.e: not carried over: its model is not carried over"
    ]


def test_second_model_of_an_engine_is_reported() -> None:
    text = (
        "model_list:\n"
        + deployment("model: openai/x, api_base: 'http://h:1'", "a")
        + deployment("model: openai/y, api_base: 'http://h:1'", "b")
    )

    assert list(tree_of(text)["models"]) == ["a"]
    assert notes_of(text) == [
        (
            'source:3: model_list[1] (b): not carried over: the same engine already serves "x", and a '
            "Headgate endpoint "
            "serves one model"
        )
    ]


def test_hosted_providers_and_wildcards_are_reported() -> None:
    text = (
        ONE
        + deployment("model: azure/gpt, api_base: 'https://a', api_key: sk-azure", "gpt")
        + deployment("model: openai/*", '"*"')
    )
    result = converted(text)

    assert [str(each) for each in result.notes] == [
        (
            'source:4: model_list[1] (gpt): not carried over: the provider "azure" does not have the OpenAI API; keep '
            "LiteLLM for it"
        ),
        "source:5: model_list[2] (*): not carried over: Headgate has no wildcards; list each model",
    ]
    assert "sk-azure" not in result.text


def test_source_without_usable_engine_is_an_error() -> None:
    text = "model_list:\n" + deployment("model: azure/gpt, api_base: 'https://a'")

    assert error_of(text) == (
        'source: has no engine that Headgate can use: the provider "azure" does not have the OpenAI API; keep LiteLLM '
        "for it"
    )


def test_secrets_become_environment_variables() -> None:
    text = (
        "model_list:\n"
        + deployment("model: openai/x, api_base: 'http://h:1', api_key: sk-secret-1", "a")
        + deployment("model: openai/x, api_base: 'http://h:2', api_key: sk-secret-2", "a")
        + deployment("model: openai/x, api_base: 'http://h:3', api_key: sk-secret-1", "b")
        + deployment("model: openai/x, api_base: 'http://h:4', api_key: os.environ/OWN_KEY", "c")
        + deployment("model: openai/x, api_base: 'http://h:5', api_key: none", "d")
    )
    result = converted(text)
    keys = {pool["endpoints"][0]: pool.get("api_key") for pool in tree_of(text)["pools"].values()}

    assert keys == {
        "http://h:1": "${A_API_KEY}",
        "http://h:2": "${A_API_KEY_2}",
        "http://h:3": "${A_API_KEY}",
        "http://h:4": "${OWN_KEY}",
        "http://h:5": None,
    }
    assert "sk-secret" not in result.text + "".join(map(str, result.notes))
    assert set(result.variables) == {"A_API_KEY", "A_API_KEY_2", "OWN_KEY"}
    assert notes_of(text)[0] == (
        "source:2: model_list[0].litellm_params.api_key: changed: secrets are not copied; set the environment variable "
        "A_API_KEY"
    )


def test_unknown_settings_are_reported_without_their_values() -> None:
    text = one_with(
        "litellm_settings: {langfuse_secret: hunter2}", "guardrails: [{guardrail_name: x, api_key: hunter2}]"
    )
    result = converted(text)

    assert [str(each) for each in result.notes] == [
        "source:4: litellm_settings.langfuse_secret: not carried over: has no equivalent",
        "source:5: guardrails: not carried over: has no equivalent",
    ]
    assert "hunter2" not in result.text
    assert "# - source:5: guardrails: has no equivalent" in result.text.splitlines()


def test_router_settings_become_timeouts_retries_and_ejection() -> None:
    text = one_with(
        "router_settings:",
        "  {num_retries: 2, timeout: 300, stream_timeout: 20.5, allowed_fails: 5, cooldown_time: 400}",
        "litellm_settings: {num_retries: 7, request_timeout: 100}",
    )
    result = converted(text)
    policy = settings_of(result).policy

    assert policy.retry.attempts_max == 3
    assert (policy.health.consecutive_failures_max, policy.health.ejection_ns) == (5, 400 * SECOND)
    assert policy.health.ejection_ns_max == 400 * SECOND
    assert {each.total_ns_max for each in policy.classes} == {5 * MINUTE}
    assert {each.first_token_ns_max for each in policy.classes} == {20.5 * SECOND}
    assert [str(each) for each in result.notes] == [
        (
            "source:6: litellm_settings.num_retries: not carried over: retry.attempts_max applies to the "
            "whole gateway and "
            "is already 3"
        ),
        (
            "source:6: litellm_settings.request_timeout: not carried over: "
            "classes.interactive.attempt_timeout applies to "
            "the whole gateway and is already 5m"
        ),
    ]


def test_fallbacks_are_carried_over_for_known_models() -> None:
    text = (
        "model_list:\n"
        + deployment("model: openai/x, api_base: 'http://h:1'", "a")
        + deployment("model: openai/x, api_base: 'http://h:2'", "b")
        + deployment("model: openai/x, api_base: 'http://h:3'", "c")
        + "router_settings: {fallbacks: [{a: [b, gone]}], default_fallbacks: [c]}\n"
    )

    assert tree_of(text)["models"] == {
        "a": {"pools": "a", "fallbacks": ["b", "c"]},
        "b": {"pools": "b", "fallbacks": "c"},
        "c": "c",
    }
    assert notes_of(text) == [
        'source:5: router_settings.fallbacks[0].a: not carried over: the model "gone" is not carried over'
    ]


def test_prices_per_token_become_prices_per_million() -> None:
    text = "model_list:\n" + deployment(
        "model: openai/x, api_base: 'http://h:1', input_cost_per_token: 2e-7, output_cost_per_token: 0.0000008",
        more=", model_info: {id: d1, mode: chat, cache_read_input_token_cost: 1e-7}",
    )
    [pool] = tree_of(text)["pools"].values()

    [price] = pool["prices"]
    assert {name: Decimal(str(value)) for name, value in price.items()} == {
        "input_per_1m_tokens": Decimal("0.2"),
        "cached_per_1m_tokens": Decimal("0.1"),
        "output_per_1m_tokens": Decimal("0.8"),
    }
    assert notes_of(text) == []


def test_parallel_requests_become_the_limit_of_an_endpoint() -> None:
    text = (
        "model_list:\n"
        + deployment("model: openai/x, api_base: 'http://h:1', max_parallel_requests: 8")
        + deployment("model: openai/x, api_base: 'http://h:2'")
        + "general_settings: {max_parallel_requests: 16, global_max_parallel_requests: 30000,"
        + " max_request_size_mb: 2048}\n"
    )
    [pool] = tree_of(text)["pools"].values()
    limits = settings_of(converted(text)).limits

    assert pool["in_flight_max"] == 8
    assert pool["endpoints"] == ["http://h:1", {"url": "http://h:2", "in_flight_max": 16}]
    assert (limits.requests_open_max, limits.connections_open_max, limits.body_bytes_max) == (30_000, 30_000, 2**31)


def test_base_url_comes_from_the_environment_variable_that_is_set_now() -> None:
    text = "model_list:\n" + deployment("model: openai/x, api_base: os.environ/BASE")
    [pool] = tree_of(text, {"BASE": "http://h:1/v1"})["pools"].values()

    assert pool["endpoints"] == ["http://h:1"]
    assert "environment variable BASE, which is not set; export it and convert again" in error_of(text)


def test_master_key_keeps_working_with_the_key_secret() -> None:
    text = one_with("general_settings: {master_key: sk-1234}")
    result = converted(text, key_secret=SECRET)
    tree = tree_of(text, key_secret=SECRET)

    assert tree["tenants"] == {"master": {"keys": [format_digest(digest(SECRET, "sk-1234"))]}}
    assert tree["key_secret"] == "${HEADGATE_KEY_SECRET}"
    assert "anonymous_tenant" not in tree
    assert "sk-1234" not in result.text
    assert "HEADGATE_KEY_SECRET" in result.variables


@pytest.mark.parametrize("key", ["sk-1234", "os.environ/LITELLM_MASTER_KEY"])
def test_clients_still_need_a_key_if_the_master_key_cannot_be_hashed(key: str) -> None:
    text = one_with(f"general_settings: {{master_key: {key}}}")

    assert "anonymous_tenant" not in tree_of(text)
    [note] = notes_of(text)
    assert note.startswith(
        "source:4: general_settings.master_key: not carried over: the hash of the key cannot be computed"
    )


TEAMS = [
    {
        "team_id": "t1",
        "team_alias": "Search Team",
        "models": ["qwen3", "gpt"],
        "rpm_limit": 600,
        "tpm_limit": 90000,
        "max_parallel_requests": 20,
        "max_budget": 100.5,
        "budget_duration": "30d",
        "spend": 3.5,
        "metadata": {},
    },
    {"team_id": "t2", "team_alias": "Old", "blocked": True, "tpm_limit": 5},
    {"team_id": "t3", "team_alias": "Images", "models": ["dall-e"]},
]
KEYS = {
    "keys": [
        {"token": "88" * 32, "key_name": "sk-...ab12", "key_alias": "web", "team_id": "t1", "rpm_limit": 0},
        {"key": "sk-known", "key_alias": "batch", "team_id": None, "max_budget": 5, "budget_duration": "7d"},
        {"key": "sk-known", "key_alias": "twin", "expires": "2027-01-01"},
    ],
    "total_count": 3,
}


def test_teams_and_keys_become_tenants(tmp_path: Path) -> None:
    (tmp_path / "teams.json").write_text(json.dumps(TEAMS))
    (tmp_path / "keys.json").write_text(json.dumps(KEYS))
    accounts = (tmp_path / "teams.json", tmp_path / "keys.json")
    tree = tree_of(ONE, accounts=accounts, key_secret=SECRET)

    assert tree["tenants"] == {
        "Search-Team": {
            "limits": {"requests_per_minute": 600, "tokens_per_minute": 90000, "concurrency": 20},
            "budgets": {"month": 100.5},
            "models": ["qwen3"],
        },
        "Search-Team/web": {"limits": {"requests_per_minute": 1}},
        "batch": {"keys": [format_digest(digest(SECRET, "sk-known"))]},
        "twin": {},
    }
    assert "anonymous_tenant" not in tree
    notes = sorted(notes_of(ONE, accounts=accounts, key_secret=SECRET), key=lambda note: note.partition(":")[0])
    assert notes == [
        "keys.json:1: keys[0].rpm_limit: changed: requests_per_minute has a minimum of 1",
        (
            "keys.json:1: keys[0]: not carried over: the hash of the key cannot be computed without the text of the "
            "key; create a new one with `headgate keys new --tenant Search-Team/web --write`"
        ),
        "keys.json:1: keys[1].max_budget: not carried over: budgets are per calendar day or month",
        (
            "keys.json:1: keys[2].expires: not carried over: keys in the file do not expire; use the database for keys "
            "that do"
        ),
        "keys.json:1: keys[2]: not carried over: the key belongs to more than one account; the first one keeps it",
        (
            "teams.json:1: [0].max_budget: changed: the budget is per calendar month (UTC); it needs prices and, to "
            "persist, a ledger"
        ),
        "teams.json:1: [0].models: changed: models that are not carried over are removed",
        "teams.json:1: [1]: not carried over: the account is blocked",
        "teams.json:1: [2]: not carried over: none of its models is carried over",
    ]


def test_list_of_key_hashes_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"keys": ["88aa", "99bb"]}')

    assert error_of(ONE, accounts=(tmp_path / "keys.json",)) == (
        "keys.json:1: keys: must be complete objects; export /key/list with return_full_object=true"
    )


def test_budget_of_the_proxy_applies_to_requests_without_a_key() -> None:
    text = one_with("litellm_settings: {max_budget: 10, budget_duration: 1d}")

    assert tree_of(text)["tenants"] == {"everyone": {"budgets": {"day": 10}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_list: 3", "source:1: model_list: must be a list"),
        ("model_list: [3]", "source:1: model_list[0]: must be a mapping of settings"),
        ("model_list: [{model_name: a}]", "source:1: model_list[0].litellm_params.model: missing; set it, or remove"),
        (
            "model_list: [{litellm_params: {model: a}}]",
            "source:1: model_list[0].model_name: missing; set it, or remove",
        ),
        (ONE + "router_settings: {num_retries: many}", "source:4: router_settings.num_retries: must be a number"),
        (ONE + "router_settings: {num_retries: 1.5}", "source:4: router_settings.num_retries: must be a whole number"),
        (ONE + "router_settings: {timeout: soon}", "source:4: router_settings.timeout: must be a number of seconds"),
        (ONE + "router_settings: {timeout: [1]}", "source:4: router_settings.timeout: must be a single value"),
        (ONE + "model_list: []", "source:1: model_list: is on line 1 and again on line 4; remove one"),
        ("model_list: &a [*a]", "source:1: model_list[0]: is an alias of an enclosing value"),
        ("model_list: !!python/object:os.system x", "source:1: model_list: has the YAML tag"),
        ("model_list: [", "source:2: is not YAML: "),
        ("{}", "source: has an unknown format; name it with --from, one of litellm"),
    ],
)
def test_invalid_source_is_a_one_line_error(text: str, message: str) -> None:
    said = error_of(text)

    assert said.startswith(message)
    assert "\n" not in said


def test_anchors_and_merge_keys_are_supported() -> None:
    text = """\
        defaults: &vllm {model: hosted_vllm/x, api_key: os.environ/KEY}
        model_list:
          - {model_name: a, litellm_params: {<<: *vllm, api_base: "http://h:1"}}
    """

    assert tree_of(text)["pools"]["a"]["api_key"] == "${KEY}"
