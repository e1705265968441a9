"""Messages about invalid configuration files."""

import pytest

from headgate.config.references import TENANT_PATH_RULE
from tests.config.builders import (
    SMALL,
    problems_of,
    small_with,
    small_with_classes,
    small_with_endpoint,
    warnings_of,
)

DIGEST = "hmac-sha256:" + "ab" * 32

ADDRESS = "an address with a port, such as 127.0.0.1:8080, [::1]:8080 or, for all interfaces, 0.0.0.0:8080"
DURATION = "a duration with its unit, such as 250ms, 10s, 5m or 1h"
SIZE = "a size with its unit, such as 512KiB, 32MiB or 1GiB"
LIMITS = (
    "a mapping with the settings body_bytes_max, audio_body_bytes_max, total_body_bytes_max, "
    "unverified_body_bytes_max, requests_open_max, mirrors_open_max, connections_open_max, "
    "unauthenticated_connections_max, header_bytes_max, header_count_max, field_bytes_max, header_timeout, "
    "body_timeout, keepalive_timeout, send_timeout"
)
CAPS = "classes: {long: {caps: {%s}}}"
EFFORTS = "available: none, minimal, low, medium, high, xhigh, unlimited"
SAME = "is the same as listen; choose another port"


def test_all_problems_are_reported_in_file_order() -> None:
    text = """
    listen: 127.0.0.1
    drain_grace: 30
    limits: {body_bytes_max: 32MiB, request_open_max: 20000}
    pools:
      small:
        engine: llamacp
        endpoits: [http://127.0.0.1:8081/v1, {url: "http://b:1/", nam: gpu-2, in_flight_max: 0}]
    models:
      smollm2: smal
      m2: {pools: [small, small]}
    classes:
      interactive: {queue_wait_max: 5s, service_tiers: [prioriy, auto]}
      x: {}
    tenants:
      demo: {keys: [hg-1234], clases: [interactiv]}
      demo: {}
    anonymous_tenant: dem
    key_secret: ${NOT_SET}
    """

    assert problems_of(text) == [
        (
            "1: listen: expected an address with a port, such as 127.0.0.1:8080, [::1]:8080 or, for all "
            'interfaces, 0.0.0.0:8080, found "127.0.0.1"'
        ),
        '2: drain_grace: expected a duration with its unit, such as 250ms, 10s, 5m or 1h, found "30"',
        '3: limits.request_open_max: unknown key; did you mean "requests_open_max"?',
        '6: pools.small.engine: engine "llamacp" does not exist; did you mean "llamacpp"?',
        '7: pools.small.endpoits: unknown key; did you mean "endpoints"?',
        '7: pools.small.endpoints[1].nam: unknown key; did you mean "name"?',
        "7: pools.small.endpoints[1].in_flight_max: must be at least 1, not 0",
        '7: pools.small.endpoints[0].url: ends with "/v1"; remove it, because Headgate adds the API paths',
        '9: models.smollm2.pools[0]: pool "smal" does not exist; did you mean "small"?',
        '10: models.m2.pools[1]: pool "small" is listed twice; remove one',
        '12: classes.interactive.service_tiers[0]: tier "prioriy" does not exist; did you mean "priority"?',
        (
            '12: classes.interactive.service_tiers[1]: tier "auto" lets the gateway choose and cannot select '
            "a class; remove it"
        ),
        "13: classes.x.priority_band: missing; set the priority, where 0 is the highest",
        "15: tenants.demo: is on line 15 and again on line 16; remove one",
        '15: tenants.demo.clases: unknown key; did you mean "classes"?',
        '15: tenants.demo.classes[0]: class "interactiv" does not exist; did you mean "interactive"?',
        (
            "15: tenants.demo.keys[0]: is not a key hash (hmac-sha256: and 64 hexadecimal digits); "
            "`headgate keys hash` computes one"
        ),
        '17: anonymous_tenant: tenant "dem" does not exist; did you mean "demo"?',
        "18: key_secret: the environment variable NOT_SET is not set; export it before starting Headgate",
    ]


def test_empty_file_is_reported_with_required_settings() -> None:
    assert problems_of("# nothing yet\n") == [
        "1: pools: missing; define at least one pool",
        "1: models: missing; define at least one model with its pools",
    ]


def test_empty_sections_are_reported() -> None:
    assert problems_of("pools: {}\nmodels: {}\n") == [
        "1: pools: has no pools; define at least one, with the URLs of its engines",
        "2: models: has no models; define at least one, with the pools that serve it",
    ]


def test_empty_pool_is_reported_with_required_settings() -> None:
    assert problems_of(SMALL.replace("{engine: llamacpp, in_flight_max: 4, ", "{")) == [
        "2: pools.small.engine: missing; set the kind of engine, such as vllm or llamacpp",
        (
            "2: pools.small.in_flight_max: missing; set the number of concurrent requests per endpoint "
            "(llama.cpp: its --parallel; vLLM: try 64)"
        ),
    ]


def test_unknown_key_without_close_match_lists_valid_keys() -> None:
    settings = (
        "consecutive_failures_max, stall_timeout, ejection_time, ejection_time_max, slow_start, zone_ejection_percent"
    )
    assert problems_of(small_with("health: {xyz: 1}")) == [
        f"8: health.xyz: unknown key; the settings here are {settings}"
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("limits: 3", f'limits: expected {LIMITS}, found "3"'),
        ("limits: [3]", f"limits: expected {LIMITS}, found a list"),
        ("limits: {body_bytes_max: 32}", f'limits.body_bytes_max: expected {SIZE}, found "32"'),
        ("limits: {body_bytes_max: 1B}", "limits.body_bytes_max: must be at least 1KiB, not 1B"),
        ("limits: {requests_open_max: many}", 'limits.requests_open_max: expected a whole number, found "many"'),
        ("limits: {requests_open_max: 0}", "limits.requests_open_max: must be at least 1, not 0"),
        ("limits: {requests_open_max: [1]}", "limits.requests_open_max: expected a number, found a list"),
        ("limits: {send_timeout: 0s}", "limits.send_timeout: must be at least 1ms, not 0s"),
        ("limits: {header_bytes_max: 1}", f'limits.header_bytes_max: expected {SIZE}, found "1"'),
        ("limits: {header_count_max: 0}", "limits.header_count_max: must be at least 1, not 0"),
        (
            "limits: {total_body_bytes_max: 1MiB}",
            (
                "limits.total_body_bytes_max: is less than body_bytes_max, so a body of the maximum size is "
                "never accepted; raise it"
            ),
        ),
        ("limits: {connections_open_max: 0}", "limits.connections_open_max: must be at least 1, not 0"),
        ("limits: {header_timeout: 0s}", "limits.header_timeout: must be at least 1ms, not 0s"),
        (CAPS % "n: 0", "classes.long.caps.n: must be at least 1, not 0"),
        (CAPS % "prompt_logprobs: -1", "classes.long.caps.prompt_logprobs: must be at least 0, not -1"),
        (CAPS % "n: none", 'classes.long.caps.n: expected a whole number or unlimited, found "none"'),
        (CAPS % "n: [1]", "classes.long.caps.n: expected a number or unlimited, found a list"),
        (CAPS % "output_token: 1", 'classes.long.caps.output_token: unknown key; did you mean "output_tokens"?'),
        (
            CAPS % "reasoning_effort: hihg",
            'classes.long.caps.reasoning_effort: "hihg" is not a valid value; did you mean "high"?',
        ),
        (
            CAPS % "reasoning_effort: 4",
            f'classes.long.caps.reasoning_effort: "4" is not a valid value; {EFFORTS}',
        ),
        (
            CAPS % "image_detail: hgih",
            'classes.long.caps.image_detail: "hgih" is not a valid value; did you mean "high"?',
        ),
        (
            "classes: {long: {optimize_for: latncy}}",
            'classes.long.optimize_for: "latncy" is not a valid value; did you mean "latency"?',
        ),
        (
            "classes: {long: {optimize_for: x}}",
            'classes.long.optimize_for: "x" is not a valid value; available: latency, quality, cost',
        ),
        ("classes: {long: {tft: 2s}}", 'classes.long.tft: unknown key; did you mean "ttft"?'),
        ("classes: {long: {ttft: 2}}", f'classes.long.ttft: expected {DURATION} or unlimited, found "2"'),
        ("classes: {long: {min_share_percent: 101}}", "classes.long.min_share_percent: must be at most 100, not 101"),
        (
            "classes: {long: {min_share_percent: 60}, batch: {min_share_percent: 41}}",
            (
                "classes.batch.min_share_percent: the minimum shares of all bands add up to 101 percent; lower "
                "them to at most 100"
            ),
        ),
        (
            "classes: {long: {reserve_percent: 60}, batch: {reserve_percent: 41}}",
            (
                "classes.batch.reserve_percent: the reserved shares of all classes add up to 101 percent; lower "
                "them to at most 100"
            ),
        ),
        (
            "classes: {long: {degradation_steps: [{level: 2, model: smolm2}]}}",
            'classes.long.degradation_steps[0].model: model "smolm2" does not exist; did you mean "smollm2"?',
        ),
        (
            "classes: {long: {degradation_steps: [{model: smollm2}]}}",
            "classes.long.degradation_steps[0].level: missing; set the degradation level, 1 to 6",
        ),
        (
            "classes: {long: {degradation_steps: [{level: 7, model: smollm2}]}}",
            "classes.long.degradation_steps[0].level: must be at most 6, not 7",
        ),
        (
            "classes: {long: {degradation_steps: [{level: 2, model: smollm2}, {level: 2, caps: {n: 1}}]}}",
            "classes.long.degradation_steps[1].level: level 2 already has a step; merge the two",
        ),
        (
            "degradation: {recover_below_percent: 100}",
            (
                "degradation.recover_below_percent: must be below escalate_above_percent, or the level would "
                "oscillate; lower it"
            ),
        ),
        ("degradation: {level_max: 7}", "degradation.level_max: must be at most 6, not 7"),
        ("shedding: {arival_window: 70}", 'shedding.arival_window: unknown key; did you mean "arrival_window"?'),
        ("headroom: {kv_percent: 101}", "headroom.kv_percent: must be at most 100, not 101"),
        (
            "admission: {predicted_wait_percent_max: none}",
            'admission.predicted_wait_percent_max: expected a whole number or unlimited, found "none"',
        ),
        ("fairness_depth: 0", "fairness_depth: must be at least 1, not 0"),
        ("retry: {pool_budget_percent: 101}", "retry.pool_budget_percent: must be at most 100, not 101"),
        ("classes: []", "classes: expected a mapping from names to their settings, found a list"),
        (
            "classes: {}",
            "classes: has no classes; define at least one, or remove the section to use the default classes",
        ),
        (
            "classes: {long: {accepts_unclassified: yes}}",
            'classes.long.accepts_unclassified: expected true or false, found "yes"',
        ),
        (
            "classes: {long: {accepts_unclassified: [yes]}}",
            "classes.long.accepts_unclassified: expected true or false, found a list",
        ),
        ("classes: {long: {pools: {a: b}}}", "classes.long.pools: expected a list, found a mapping"),
        ("listen: [a]", "listen: expected text, found a list"),
        (
            "health: {ejection_time: 1m, ejection_time_max: 1s}",
            "health.ejection_time_max: is less than ejection_time; raise it",
        ),
        ("admin_listen: 127.0.0.1:8080", f"admin_listen: {SAME}"),
        ("listen: :8080", f'listen: expected {ADDRESS}, found ":8080"'),
        ('key_secret: ""', "key_secret: expected a non-empty string"),
        ("key_secret: [[a]]", "key_secret[0]: expected text"),
    ],
)
def test_value_of_wrong_type_is_reported_with_expected_type(line: str, said: str) -> None:
    assert problems_of(small_with(line)) == [f"8: {said}"]


def test_non_string_key_is_rejected() -> None:
    assert problems_of(small_with("? [a]", ": b")) == ["1: has a key on line 8 that is not a string; use a name"]


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("127.0.0.1:8081", "is not the URL of an engine; write it as http://HOST:PORT or https://HOST"),
        ("ftp://gpu", "is not the URL of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://", "is not the URL of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://gpu:99999", "is not the URL of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://[gpu", "is not the URL of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://gpu/v1/", 'ends with "/v1/"; remove it, because Headgate adds the API paths'),
        ("http://gpu?a=b", 'ends with "?a=b"; remove it, because Headgate adds the API paths'),
        ("http://me:pass@gpu", "has credentials; remove them and set the pool's api_key"),
    ],
)
def test_invalid_engine_url_is_reported(endpoint: str, said: str) -> None:
    assert problems_of(small_with_endpoint(f'"{endpoint}"')) == [f"2: pools.small.endpoints[0].url: {said}"]


def test_duplicate_endpoint_address_is_reported() -> None:
    assert problems_of(small_with_endpoint('http://gpu, {url: "http://GPU:80/", name: b}')) == [
        ('2: pools.small.endpoints[1].url: gpu:80 is already endpoint "small/gpu:80"; remove one of the two')
    ]


def _two_pools(first: str, second: str) -> str:
    endpoint = "endpoints: [{url: http://gpu"
    return (
        f"pools:\n  a: {{engine: vllm, in_flight_max: 4, {first}{endpoint}}}]}}\n"
        f"  b: {{engine: vllm, in_flight_max: 4, {second}{endpoint}, name: e}}]}}\nmodels: {{m: a, n: b}}\n"
    )


def test_address_may_stand_in_several_pools() -> None:
    assert problems_of(_two_pools("kv_tokens: 10, ", "kv_tokens: 10, api_key: k, ")) == []


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("in_flight_max: 8, ", "", "in_flight_max is 4, but 8"),
        ("", "kv_tokens: 10, ", "kv_tokens is 10, but not set"),
        ("prices: [{per_hour: 2}], ", "", "the price (prices) is different, but set otherwise"),
    ],
)
def test_pools_with_one_address_must_agree_about_the_engine(first: str, second: str, said: str) -> None:
    text = _two_pools(first, second)
    if "in_flight_max: 8" in text:
        text = text.replace("in_flight_max: 4, in_flight_max: 8", "in_flight_max: 8")

    problem = (
        f'{said} for endpoint "a/gpu:80" on the same engine; set the same value, because the pools share the engine'
    )
    assert problems_of(text) == [f"3: pools.b.endpoints[0]: {problem}"]


def test_pool_on_a_shared_engine_cannot_be_scaled() -> None:
    text = _two_pools("scaling: {endpoints_max: 2}, ", "")

    problem = 'gpu:80 belongs to several pools, and the pool of endpoint "a/gpu:80" has scaling'
    next_step = "remove scaling, because the size of a pool with shared engines cannot be planned"
    assert problems_of(text) == [f"3: pools.b.endpoints[0]: {problem}; {next_step}"]


def test_several_pools_of_an_engine_may_have_adapters() -> None:
    first, second = "adapters: [{name: sql}, {name: chat, source: /chat}]", "adapters: [{name: sql, source: /sql}]"

    assert problems_of(_two_pools(f"{first}, ", "")) == []
    assert problems_of(_two_pools(f"{first}, max_lora: 2, ", f"{second}, max_lora: 2, ")) == []
    assert problems_of(_two_pools(f"{first}, max_lora: 2, ", "")) == []


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("adapters: [{name: sql}], max_lora: 2, ", "discover_adapters: true, ", "max_lora is not set, but 2"),
        (
            "adapters: [{name: sql, source: /one}], ",
            "adapters: [{name: sql, source: /other}], ",
            'the source of adapter "sql" is /other, but /one',
        ),
    ],
)
def test_pools_of_an_engine_must_agree_about_its_adapters(first: str, second: str, said: str) -> None:
    problem = f'{said} for endpoint "a/gpu:80" on the same engine; set the same value, because the pools share'
    assert problems_of(_two_pools(first, second)) == [f"3: pools.b.endpoints[0]: {problem} the engine"]


def test_duplicate_endpoint_name_is_reported() -> None:
    endpoints = "{url: http://a, name: gpu}, {url: http://b, name: gpu}"

    assert problems_of(small_with_endpoint(endpoints)) == [
        '2: pools.small.endpoints[1].name: pool "small" already has an endpoint named "gpu"; choose another name'
    ]


def test_endpoint_requires_a_url() -> None:
    assert problems_of(small_with_endpoint("{name: 'a b'}, {url: http://b, name: 'a b'}")) == [
        "2: pools.small.endpoints[0].url: missing; set the URL of the engine, such as http://127.0.0.1:8081",
        "2: pools.small.endpoints[1].name: must have only letters, digits, and . _ : -",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("speed: h200-lama-8b", 'speed.profile: profile "h200-lama-8b" does not exist; did you mean "h200-llama-8b"?'),
        (
            "speed: {profile: mine}",
            (
                'speed.profile: profile "mine" does not exist; '
                "the profiles are rtxpro6000-llama-8b, h200-llama-8b, h100x8-llama-70b, tiny, "
                "or the path of a profile file"
            ),
        ),
        (
            "speed: {step: 5}",
            'speed.step: expected a short duration with its unit, such as 13.2ms, 36us or 0.28ns, found "5"',
        ),
        ("speed: {step: 0ms}", "speed.step: must be at least 1us, not 0ms"),
        ("speed: {prefil_token: 1us}", 'speed.prefil_token: unknown key; did you mean "prefill_token"?'),
        ("kv_tokens: 0", "kv_tokens: must be at least 1, not 0"),
        (
            "prompt_tokens_min: 9, prompt_tokens_max: 8",
            "prompt_tokens_max: is less than prompt_tokens_min 9; raise it",
        ),
        (
            "output_tokens_min: 9, output_tokens_max: 8",
            "output_tokens_max: is less than output_tokens_min 9; raise it",
        ),
    ],
)
def test_invalid_pool_policy_is_reported(settings: str, said: str) -> None:
    text = SMALL.replace("in_flight_max: 4", f"in_flight_max: 4, {settings}")

    assert problems_of(text) == [f"2: pools.small.{said}"]


def test_invalid_device_and_zone_names_are_reported() -> None:
    assert problems_of(small_with_endpoint("{url: http://a, device: a b}, {url: http://b, zone: a b}")) == [
        "2: pools.small.endpoints[0].device: must have only letters, digits, and . _ : -",
        "2: pools.small.endpoints[1].zone: must have only letters, digits, and . _ : -",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("tiers: [{plans: free}]", "tiers[0].pools: missing; list the pools of the model that serve this tier"),
        ("tiers: [[]]", "tiers[0].pools: has no pools; list the pools of the model that serve this tier"),
        ("tiers: smal", 'tiers[0].pools[0]: pool of this model "smal" does not exist; did you mean "small"?'),
        (
            "tiers: {pools: small}",
            "tiers: expected a list, found a mapping",
        ),
        (
            "tiers: [{pools: small, classes: [bath]}]",
            'tiers[0].classes[0]: class "bath" does not exist; did you mean "batch"?',
        ),
        (
            "tiers: [{pools: small, plans: [free, gold]}]",
            'tiers[0].plans[1]: "gold" is not a valid value; available: free, standard, critical',
        ),
        (
            "tiers: [{pools: small, name: a b}]",
            "tiers[0].name: a name must have 1 to 64 characters: letters, digits, and . _ -",
        ),
        ("routes: [{weight: 1}]", "routes[0]: needs exactly one of pools, tier and model"),
        ("routes: [{pools: small, tier: t}]", "routes[0]: needs exactly one of pools, tier and model"),
        ("routes: smal", 'routes[0].pools[0]: pool "smal" does not exist; did you mean "small"?'),
        ("routes: [{tier: big}]", 'routes[0].tier: tier "big" does not exist; none is defined'),
        ("routes: [{model: smollm2}]", 'routes[0].model: other model "smollm2" does not exist; none is defined'),
        (
            "routes: [{pools: small, match: {classes: bath}}]",
            'routes[0].match.classes[0]: class "bath" does not exist; did you mean "batch"?',
        ),
        (
            "routes: [{pools: small, match: {plans: gold}}]",
            'routes[0].match.plans[0]: "gold" is not a valid value; available: free, standard, critical',
        ),
        (
            "routes: [{pools: small, match: {tenants: a b}}]",
            f"routes[0].match.tenants[0]: {TENANT_PATH_RULE}",
        ),
        (
            "routes: [{pools: small, match: {headers: {x-beta: []}}}]",
            "routes[0].match.headers.x-beta: has no values; list the values to match",
        ),
        (
            "routes: [{pools: small, mirror: {percent: 5}}]",
            "routes[0].mirror: needs exactly one of pools, tier and model",
        ),
        (
            "routes: [{pools: small, mirror: smal}]",
            'routes[0].mirror.pools[0]: pool "smal" does not exist; did you mean "small"?',
        ),
        (
            "routes: [{pools: small, mirror: {pools: small, percent: 5, fraction: {numerator: 1}}}]",
            "routes[0].mirror: has both percent and fraction; remove one",
        ),
        (
            "routes: [{pools: small, mirror: {pools: small, fraction: {numerator: 3, denominator: 2}}}]",
            "routes[0].mirror.fraction: is 3/2; it must not exceed 1",
        ),
        ("routes: [{pools: small, weight: 1000001}]", "routes[0].weight: is 1,000,001; the maximum is 1,000,000"),
        (
            "routes: [{pools: small, name: a b}]",
            "routes[0].name: a name must have 1 to 64 characters: letters, digits, and . _ -",
        ),
        ("routes: [small, small]", 'routes[1]: two routes are called "small"; set name to tell them apart'),
        (
            f"routes: [{', '.join(f'{{pools: small, name: r{n}}}' for n in range(33))}]",
            "routes: has 33 routes; at most 32",
        ),
        ("sticky: usr", 'sticky: "usr" is not a valid value; did you mean "user"?'),
        ("fallbacks: smollm3", 'fallbacks[0]: model "smollm3" does not exist; did you mean "smollm2"?'),
        ("fallbacks: smollm2", "fallbacks[0]: is the model itself; remove it"),
    ],
)
def test_unknown_references_in_models_are_reported(settings: str, said: str) -> None:
    text = SMALL.replace("smollm2: small", f"smollm2: {{pools: small, {settings}}}")

    assert problems_of(text) == [f"4: models.smollm2.{said}"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("plan: fre", 'plan: "fre" is not a valid value; did you mean "free"?'),
        ("weight: 0", "weight: must be at least 1, not 0"),
        ("limits: {concurency: 1}", 'limits.concurency: unknown key; did you mean "concurrency"?'),
        ("limits: {requests_per_minute: 0}", "limits.requests_per_minute: must be at least 1, not 0"),
    ],
)
def test_invalid_tenant_settings_are_reported(settings: str, said: str) -> None:
    assert problems_of(SMALL.replace("demo: {}", f"demo: {{{settings}}}")) == [f"6: tenants.demo.{said}"]


@pytest.mark.parametrize("name", ["a b", "a//b", "/a", "a/", f"{'a' * 64}/{'b' * 65}", "/".join(["step"] * 60)])
def test_invalid_tenant_path_is_reported(name: str) -> None:
    text = SMALL.replace("demo: {}", f'"{name}": {{}}').replace("tenant: demo", f'tenant: "{name}"')

    assert problems_of(text) == [
        (
            f"6: tenants.{name}: a tenant name must have 1 to 64 characters: letters, digits, and . _ -; "
            "a path joins several names with /"
        )
    ]


def test_pool_without_endpoints_is_rejected() -> None:
    assert problems_of(small_with_endpoint("")) == [
        ("2: pools.small.endpoints: has no endpoints; list the URL of at least one engine, or configure fleet")
    ]


def test_pool_shared_by_models_requires_served_model() -> None:
    assert problems_of(SMALL.replace("smollm2: small", "a: small\n  b: small")) == [
        ('2: pools.small.served_model: missing; models "a", "b" share this pool, so set the name that its engines use')
    ]


def test_names_with_special_characters_are_rejected() -> None:
    text = small_with_classes('"two words": {priority_band: 0}').replace("smollm2", '"caf\xe9"')

    assert problems_of(text) == [
        "4: models.caf\xe9: a model name must have 1 to 256 characters: letters, digits, and . _ : / @ + -",
        "9: classes.two words: a name must have 1 to 64 characters: letters, digits, and . _ -",
    ]


def test_reserved_names_are_rejected() -> None:
    text = (
        SMALL.replace("small", "gateway").replace("demo", "other")
        + "classes: {none: {priority_band: 0}, other: {priority_band: 1}}\n"
    )
    spare = text.replace(
        "pools:\n", "pools:\n  other: {engine: vllm, endpoints: ['http://127.0.0.1:1'], in_flight_max: 1}\n"
    )

    assert [each.partition(": ")[2] for each in problems_of(spare)] == [
        'pools.other: is reserved: metrics use "other" for values without a known pool; choose another name',
        'pools.gateway: is reserved: metrics use "gateway" for values for the gateway itself; choose another name',
        'tenants.other: is reserved: metrics use "other" for tenants without their own metrics; choose another name',
        'classes.none: is reserved: metrics use "none" for requests that ended without a class; choose another name',
        'classes.other: is reserved: metrics use "other" for values without a known class; choose another name',
    ]


def test_unknown_references_are_reported() -> None:
    text = small_with(
        "  x: {models: [nope], classes: [interactive]}", "classes: {chat: {priority_band: 0, pools: [nope]}}"
    )
    text = text.replace("smollm2: small", "smollm2: small\n  empty: []").replace("anonymous_tenant: demo\n", "")

    assert problems_of(text) == [
        "5: models.empty.pools: has no pools; list the pools that serve this model",
        '8: tenants.x.classes[0]: class "interactive" does not exist; available: chat',
        '8: tenants.x.models[0]: model "nope" does not exist; available: smollm2, empty',
        '9: classes.chat.pools[0]: pool "nope" does not exist; available: small',
    ]


def test_service_tier_selects_only_one_class() -> None:
    assert problems_of(small_with_classes("interactive: {}", "mine: {priority_band: 0, service_tiers: fast}")) == [
        (
            '10: classes.mine.service_tiers[0]: tier "fast" already selects class "interactive"; remove it from '
            "one of the two"
        )
    ]


def test_key_shared_by_two_tenants_is_reported() -> None:
    text = small_with(f"  acme: {{keys: [{DIGEST}, {DIGEST}]}}", "key_secret: 0123456789abcdef")
    text = text.replace("anonymous_tenant: demo\n", "")

    assert problems_of(text) == ['7: tenants.acme.keys[1]: is already a key of tenant "acme"; remove one of the two']


def test_keys_require_key_secret() -> None:
    assert problems_of(SMALL.replace("demo: {}", f"demo: {{keys: {DIGEST}}}")) == [
        (
            '1: key_secret: missing, but the keys of tenant "demo" are hashed with it; '
            "set it to ${HEADGATE_KEY_SECRET} and export the output of `headgate keys secret`"
        )
    ]


def test_unknown_anonymous_tenant_is_reported_with_next_step() -> None:
    assert problems_of(SMALL.replace("anonymous_tenant: demo", "anonymous_tenant: laptop")) == [
        '7: anonymous_tenant: tenant "laptop" does not exist; add "laptop: {}" to tenants'
    ]


def test_probably_unintended_settings_cause_warnings() -> None:
    text = """
    listen: 0.0.0.0:8080
    key_secret: short
    anonymous_tenant: demo
    pools:
      small: {engine: llamacpp, in_flight_max: 4, endpoints: ["http://127.0.0.1:8081"]}
      spare: {engine: llamacpp, in_flight_max: 4, endpoints: ["http://127.0.0.1:8082"]}
    models:
      smollm2: small
    tenants:
      demo: {}
      nobody: {}
    classes:
      batch: {}
    """

    assert warnings_of(text) == [
        "2: key_secret: is short enough to be guessed; use the output of `headgate keys secret`",
        (
            '3: anonymous_tenant: every client that can reach 0.0.0.0 acts as tenant "demo" without a key; listen '
            "on 127.0.0.1, or remove it"
        ),
        "6: pools.spare: no model uses this pool; add it to a model, or remove it",
        (
            "11: tenants.nobody: has no key and is not the anonymous tenant, so no request can belong to it; "
            "`headgate keys new --tenant nobody` creates one"
        ),
        (
            "12: classes: no class accepts requests without a class or tier; set accepts_unclassified: true for "
            "one of them"
        ),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            CAPS % "trim_prompt: true",
            "classes.long.caps.trim_prompt: has no effect without prompt_tokens; set prompt_tokens too",
        ),
        (
            CAPS % "best_of: 4",
            (
                "classes.long.caps.best_of: is less than n, so a request may get more completions than it "
                "allows; raise it, or lower n to 4"
            ),
        ),
        (
            "classes: {interactive: {caps: {prompt_tokens: 4000}}}",
            (
                "classes.interactive.caps.prompt_tokens: is less than prompt_tokens_max 8000, so longer "
                "unclassified prompts get this class and are rejected; lower prompt_tokens_max to 4000, or "
                "set trim_prompt"
            ),
        ),
        (
            "limits: {requests_open_max: 30000}",
            (
                "limits.connections_open_max: is less than requests_open_max 30000, but each open request "
                "needs a connection; raise it, or lower requests_open_max"
            ),
        ),
        (
            "classes: {long: {optimize_for: quality, degradation_steps: [{level: 2, caps: {n: 1}}]}}",
            (
                "classes.long.degradation_steps: have no effect with optimize_for: quality; remove them, or "
                "change optimize_for"
            ),
        ),
        (
            "classes: {long: {degradation_steps: [{level: 2}]}}",
            "classes.long.degradation_steps[0]: has no effect; set caps or model, or remove it",
        ),
        (
            "limits: {header_count_max: 31}",
            (
                "limits.header_count_max: rejects common clients, which send about twenty headers, and "
                "proxies add more; raise it to at least 32"
            ),
        ),
    ],
)
def test_inconsistent_numbers_cause_a_warning(line: str, said: str) -> None:
    assert warnings_of(small_with(line)) == [f"8: {said}"]


@pytest.mark.parametrize(
    "line",
    [
        CAPS % "trim_prompt: true, prompt_tokens: 9",
        CAPS % "n: 4",
        CAPS % "n: unlimited, best_of: unlimited",
        "classes: {interactive: {caps: {prompt_tokens: 4000, trim_prompt: true}}}",
        "classes: {interactive: {caps: {prompt_tokens: 8000}}}",
        "classes: {long: {}, interactive: {accepts_unclassified: false, caps: {prompt_tokens: 4000}}}",
        "limits: {requests_open_max: 25000, header_count_max: 32}",
        "classes: {long: {optimize_for: cost, degradation_steps: [{level: 2, caps: {best_of: 4}}]}}",
        "classes: {long: {priority_band: 2, min_share_percent: 60}, batch: {min_share_percent: 60}}",
    ],
)
def test_consistent_numbers_cause_no_warning(line: str) -> None:
    assert warnings_of(small_with(line)) == []


def test_catch_all_tier_before_other_tiers_causes_a_warning() -> None:
    text = SMALL.replace("smollm2: small", "smollm2: {pools: small, tiers: [small, {pools: small, plans: free}]}")

    assert warnings_of(text) == [
        ("4: models.smollm2.tiers[0]: matches every request, so later tiers are never used; move it to the end")
    ]


def test_limit_above_parent_limit_causes_a_warning() -> None:
    whole, part = "limits: {concurrency: 5, tokens_per_minute: 9}", "limits: {concurrency: 6, requests_per_minute: 99}"
    text = SMALL.replace("demo: {}", f"demo: {{{whole}}}\n  demo/a/b: {{{part}}}").replace(": demo", ": demo/a/b")

    assert warnings_of(text) == [
        (
            '7: tenants.demo/a/b.limits.concurrency: is more than the 5 of its parent "demo"; lower it, or '
            "raise the parent's"
        )
    ]


def test_file_without_tenants_causes_a_warning() -> None:
    text = SMALL.partition("tenants:")[0]

    assert warnings_of(text) == [
        (
            "1: tenants: no tenant is defined, so every request is rejected; `headgate keys new --tenant NAME` "
            "creates a key"
        )
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_anonymous_tenant_on_loopback_causes_no_warning(host: str) -> None:
    assert warnings_of(small_with(f"listen: '{host}:8080'")) == []


@pytest.mark.parametrize(
    "address",
    [
        "docs/reference/errors",
        "ftp://docs",
        "https://",
        "https://u:p@docs",
        "https://d/e?x=1",
        "https://d/e#x",
        '"https://d e"',
    ],
)
def test_error_docs_url_must_be_plain(address: str) -> None:
    assert problems_of(small_with(f"error_docs_url: {address}")) == [
        "8: error_docs_url: is not a valid base URL; write it as https://HOST/PATH, without ? or #"
    ]


def test_routes_may_match_a_limited_number_of_headers() -> None:
    headers = ", ".join(f"x-{number}: a" for number in range(9))
    text = SMALL.replace(
        "smollm2: small", f"smollm2: {{pools: small, routes: [{{pools: small, match: {{headers: {{{headers}}}}}}}]}}"
    )

    assert problems_of(text) == ["3: models: have routes that match 9 headers; at most 8 are allowed"]


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (
            "[small, {pools: small, name: b, match: {plans: free}}]",
            "routes[0]: matches every request, so later groups are never used; move it to the end",
        ),
        ("[{pools: small, weight: 0}]", "routes[0]: gets no traffic, because all routes with this match have weight 0"),
    ],
)
def test_routes_without_traffic_cause_a_warning(routes: str, said: str) -> None:
    text = SMALL.replace("smollm2: small", f"smollm2: {{pools: small, routes: {routes}}}")

    assert warnings_of(text) == [f"4: models.smollm2.{said}"]
