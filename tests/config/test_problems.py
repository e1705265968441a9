"""What is said about a file that is wrong?"""

import pytest

from tests.config.builders import (
    SMALL,
    problems_of,
    small_with,
    small_with_classes,
    small_with_endpoint,
    warnings_of,
)

DIGEST = "hmac-sha256:" + "ab" * 32

ADDRESS = "an address with its port, such as 127.0.0.1:8080, [::1]:8080 or, for every network, 0.0.0.0:8080"
DURATION = "a duration with its unit, such as 250ms, 10s, 5m or 1h"
SIZE = "a size with its unit, such as 512KiB, 32MiB or 1GiB"
LIMITS = (
    "a mapping with the settings body_bytes_max, bodies_bytes_max, requests_open_max, connections_open_max, "
    "unauthenticated_connections_max, head_bytes_max, headers_max, field_bytes_max, head_max, receive_max, "
    "idle_max, client_stall_max"
)
CAPS = "classes: {long: {caps: {%s}}}"
EFFORTS = "they are none, minimal, low, medium, high, xhigh, or unlimited"
SAME = "is the same as listen; give the admin listener a port of its own"


def test_everything_that_is_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
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
            "1: listen: expected an address with its port, such as 127.0.0.1:8080, [::1]:8080 or, for every network, "
            '0.0.0.0:8080, found "127.0.0.1"'
        ),
        '2: drain_grace: expected a duration with its unit, such as 250ms, 10s, 5m or 1h, found "30"',
        '3: limits.request_open_max: unknown key; did you mean "requests_open_max"?',
        '6: pools.small.engine: engine "llamacp" is not known; did you mean "llamacpp"?',
        '7: pools.small.endpoits: unknown key; did you mean "endpoints"?',
        '7: pools.small.endpoints[1].nam: unknown key; did you mean "name"?',
        "7: pools.small.endpoints[1].in_flight_max: must be at least 1, not 0",
        '7: pools.small.endpoints[0].url: ends in "/v1"; leave it out, since Headgate adds the paths of the API itself',
        '9: models.smollm2.pools[0]: pool "smal" does not exist; did you mean "small"?',
        '10: models.m2.pools[1]: pool "small" is named twice; keep one',
        '12: classes.interactive.service_tiers[0]: tier "prioriy" does not exist; did you mean "priority"?',
        (
            '12: classes.interactive.service_tiers[1]: tier "auto" leaves the choice to us and can select no class; '
            "remove it"
        ),
        "13: classes.x.band: missing; give its priority, where 0 goes first",
        "15: tenants.demo: stands on line 15 and again on line 16; keep one",
        '15: tenants.demo.clases: unknown key; did you mean "classes"?',
        '15: tenants.demo.classes[0]: class "interactiv" does not exist; did you mean "interactive"?',
        (
            "15: tenants.demo.keys[0]: is not the hash of a key (hmac-sha256: and 64 hexadecimal digits); "
            "`headgate keys hash` turns a key into one"
        ),
        '17: anonymous_tenant: tenant "dem" does not exist; did you mean "demo"?',
        "18: key_secret: the environment variable NOT_SET is not set; export it before starting Headgate",
    ]


def test_an_empty_file_is_told_what_it_needs() -> None:
    assert problems_of("# nothing yet\n") == [
        "1: pools: missing; name at least one pool of endpoints",
        "1: models: missing; name at least one model and its pools",
    ]


def test_what_names_nothing_is_told_to_name_something() -> None:
    assert problems_of("pools: {}\nmodels: {}\n") == [
        "1: pools: names no pool; name at least one, with the addresses of its engines",
        "2: models: names no model; name at least one and the pools that serve it",
    ]


def test_an_empty_pool_is_told_what_it_needs() -> None:
    assert problems_of(SMALL.replace("{engine: llamacpp, in_flight_max: 4, ", "{")) == [
        "2: pools.small.engine: missing; name the engine that its endpoints run, such as vllm or llamacpp",
        (
            "2: pools.small.in_flight_max: missing; say how many requests an endpoint may hold at once "
            "(llama.cpp: its --parallel; vLLM: try 64)"
        ),
    ]


def test_an_unknown_key_that_resembles_none_is_told_those_there_are() -> None:
    settings = "failures_max, stall_max, eject, eject_max, slow_start, zone_percent"
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
        ("limits: {client_stall_max: 0s}", "limits.client_stall_max: must be at least 1ms, not 0s"),
        ("limits: {head_bytes_max: 1}", f'limits.head_bytes_max: expected {SIZE}, found "1"'),
        ("limits: {headers_max: 0}", "limits.headers_max: must be at least 1, not 0"),
        (
            "limits: {bodies_bytes_max: 1MiB}",
            (
                "limits.bodies_bytes_max: is less than body_bytes_max, so the largest body that is accepted could "
                "never come in; raise it"
            ),
        ),
        ("limits: {connections_open_max: 0}", "limits.connections_open_max: must be at least 1, not 0"),
        ("limits: {head_max: 0s}", "limits.head_max: must be at least 1ms, not 0s"),
        (CAPS % "n: 0", "classes.long.caps.n: must be at least 1, not 0"),
        (CAPS % "prompt_logprobs: -1", "classes.long.caps.prompt_logprobs: must be at least 0, not -1"),
        (CAPS % "n: none", 'classes.long.caps.n: expected a whole number or unlimited, found "none"'),
        (CAPS % "n: [1]", "classes.long.caps.n: expected a number or unlimited, found a list"),
        (CAPS % "output_token: 1", 'classes.long.caps.output_token: unknown key; did you mean "output_tokens"?'),
        (
            CAPS % "reasoning_effort: hihg",
            'classes.long.caps.reasoning_effort: reasoning_effort "hihg" does not exist; did you mean "high"?',
        ),
        (
            CAPS % "reasoning_effort: 4",
            f'classes.long.caps.reasoning_effort: reasoning_effort "4" does not exist; {EFFORTS}',
        ),
        (
            CAPS % "image_detail: hgih",
            'classes.long.caps.image_detail: image_detail "hgih" does not exist; did you mean "high"?',
        ),
        (
            "classes: {long: {promise: latncy}}",
            'classes.long.promise: promise "latncy" does not exist; did you mean "latency"?',
        ),
        (
            "classes: {long: {promise: x}}",
            'classes.long.promise: promise "x" does not exist; there is latency, quality, cost',
        ),
        ("classes: {long: {tft: 2s}}", 'classes.long.tft: unknown key; did you mean "ttft"?'),
        ("classes: {long: {ttft: 2}}", f'classes.long.ttft: expected {DURATION} or unlimited, found "2"'),
        ("classes: {long: {floor_percent: 101}}", "classes.long.floor_percent: must be at most 100, not 101"),
        (
            "classes: {long: {floor_percent: 60}, batch: {floor_percent: 41}}",
            "classes.batch.floor_percent: the floors of the bands come to 101 percent with this one; lower them",
        ),
        (
            "classes: {long: {reserve_percent: 60}, batch: {reserve_percent: 41}}",
            "classes.batch.reserve_percent: what classes reserve comes to 101 percent with this one; lower some of it",
        ),
        (
            "classes: {long: {variants: [{level: 2, model: smolm2}]}}",
            'classes.long.variants[0].model: model "smolm2" does not exist; did you mean "smollm2"?',
        ),
        (
            "classes: {long: {variants: [{model: smollm2}]}}",
            "classes.long.variants[0].level: missing; say from which level of the ladder on, 1 to 6",
        ),
        (
            "classes: {long: {variants: [{level: 7, model: smollm2}]}}",
            "classes.long.variants[0].level: must be at most 6, not 7",
        ),
        (
            "classes: {long: {variants: [{level: 2, model: smollm2}, {level: 2, caps: {n: 1}}]}}",
            "classes.long.variants[1].level: level 2 has a variant already; put both into one",
        ),
        (
            "ladder: {descend_below_percent: 100}",
            (
                "ladder.descend_below_percent: is not below climb_above_percent, so that it would climb and descend "
                "by turns; lower it"
            ),
        ),
        ("ladder: {level_max: 7}", "ladder.level_max: must be at most 6, not 7"),
        ("shedding: {arivals: 70}", 'shedding.arivals: unknown key; did you mean "arrivals"?'),
        ("headroom: {kv_percent: 101}", "headroom.kv_percent: must be at most 100, not 101"),
        (
            "admission: {certainty_percent: none}",
            'admission.certainty_percent: expected a whole number or unlimited, found "none"',
        ),
        ("fairness_depth: 0", "fairness_depth: must be at least 1, not 0"),
        ("retry: {pool_percent: 101}", "retry.pool_percent: must be at most 100, not 101"),
        ("classes: []", "classes: expected a mapping from names to their settings, found a list"),
        ("classes: {}", "classes: names no class; name at least one, or leave it out for the default ones"),
        ("classes: {long: {unnamed: yes}}", 'classes.long.unnamed: expected true or false, found "yes"'),
        ("classes: {long: {unnamed: [yes]}}", "classes.long.unnamed: expected true or false, found a list"),
        ("classes: {long: {pools: {a: b}}}", "classes.long.pools: expected a list, found a mapping"),
        ("listen: [a]", "listen: expected text, found a list"),
        ("health: {eject: 1m, eject_max: 1s}", "health.eject_max: is less than eject; make it at least as long"),
        ("admin_listen: 127.0.0.1:8080", f"admin_listen: {SAME}"),
        ("listen: :8080", f'listen: expected {ADDRESS}, found ":8080"'),
        ('key_secret: ""', "key_secret: expected some text; it is empty"),
        ("key_secret: [a]", "key_secret: expected text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_the_right_one(line: str, said: str) -> None:
    assert problems_of(small_with(line)) == [f"8: {said}"]


def test_a_key_that_is_not_text_is_refused() -> None:
    assert problems_of(small_with("? [a]", ": b")) == [
        "1: has a key on line 8 that is not plain text; write a name there"
    ]


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("127.0.0.1:8081", "is not the address of an engine; write it as http://HOST:PORT or https://HOST"),
        ("ftp://gpu", "is not the address of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://", "is not the address of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://gpu:99999", "is not the address of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://[gpu", "is not the address of an engine; write it as http://HOST:PORT or https://HOST"),
        ("http://gpu/v1/", 'ends in "/v1/"; leave it out, since Headgate adds the paths of the API itself'),
        ("http://gpu?a=b", 'ends in "?a=b"; leave it out, since Headgate adds the paths of the API itself'),
        ("http://me:pass@gpu", "holds a user or password; remove it and set api_key on the pool"),
    ],
)
def test_an_address_that_is_none_is_told_so(endpoint: str, said: str) -> None:
    assert problems_of(small_with_endpoint(f'"{endpoint}"')) == [f"2: pools.small.endpoints[0].url: {said}"]


def test_one_address_cannot_be_two_endpoints() -> None:
    assert problems_of(small_with_endpoint('http://gpu, {url: "http://GPU:80/", name: b}')) == [
        (
            '2: pools.small.endpoints[1].url: gpu:80 is already endpoint "small/gpu:80"; keep one, '
            "or its places are given twice"
        )
    ]


def test_one_name_cannot_be_two_endpoints_of_a_pool() -> None:
    endpoints = "{url: http://a, name: gpu}, {url: http://b, name: gpu}"

    assert problems_of(small_with_endpoint(endpoints)) == [
        '2: pools.small.endpoints[1].name: an endpoint of pool "small" is already called "gpu"; give it another name'
    ]


def test_an_endpoint_without_an_address_is_told_what_to_write() -> None:
    assert problems_of(small_with_endpoint("{name: 'a b'}, {url: http://b, name: 'a b'}")) == [
        "2: pools.small.endpoints[0].url: missing; write where the engine listens, such as http://127.0.0.1:8081",
        "2: pools.small.endpoints[1].name: a name is made of letters, digits, and . _ : -",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("speed: h200-lama-8b", 'speed.like: profile "h200-lama-8b" does not exist; did you mean "h200-llama-8b"?'),
        (
            "speed: {like: mine}",
            (
                'speed.like: profile "mine" does not exist; '
                "the profiles are rtxpro6000-llama-8b, h200-llama-8b, h100x8-llama-70b, tiny"
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
            "prompt_tokens_max: is less than prompt_tokens_min 9, so nothing is between them; raise it",
        ),
        (
            "output_tokens_min: 9, output_tokens_max: 8",
            "output_tokens_max: is less than output_tokens_min 9, so nothing is between them; raise it",
        ),
    ],
)
def test_what_the_scheduler_is_told_of_a_pool_is_checked(settings: str, said: str) -> None:
    text = SMALL.replace("in_flight_max: 4", f"in_flight_max: 4, {settings}")

    assert problems_of(text) == [f"2: pools.small.{said}"]


def test_a_device_and_a_zone_are_names() -> None:
    assert problems_of(small_with_endpoint("{url: http://a, device: a b}, {url: http://b, zone: a b}")) == [
        "2: pools.small.endpoints[0].device: a name is made of letters, digits, and . _ : -",
        "2: pools.small.endpoints[1].zone: a name is made of letters, digits, and . _ : -",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("rungs: [{plans: free}]", "rungs[0].pools: missing; name the pools of the model that serve this rung"),
        ("rungs: [[]]", "rungs[0].pools: names no pool; name the pools of the model that serve this rung"),
        ("rungs: smal", 'rungs[0].pools[0]: pool of this model "smal" does not exist; did you mean "small"?'),
        (
            "rungs: {pools: small}",
            "rungs: expected a list, found a mapping",
        ),
        (
            "rungs: [{pools: small, classes: [bath]}]",
            'rungs[0].classes[0]: class "bath" does not exist; did you mean "batch"?',
        ),
        (
            "rungs: [{pools: small, plans: [free, gold]}]",
            'rungs[0].plans[1]: plan "gold" does not exist; there is free, standard, critical',
        ),
        (
            "rungs: [{pools: small, named: a b}]",
            "rungs[0].named: a name is made of up to 64 letters, digits, and . _ -",
        ),
        ("fallbacks: smollm3", 'fallbacks[0]: model "smollm3" does not exist; did you mean "smollm2"?'),
        ("fallbacks: smollm2", "fallbacks[0]: is the model itself, whose pools have just been tried; remove it"),
    ],
)
def test_what_models_name_must_be_there(settings: str, said: str) -> None:
    text = SMALL.replace("smollm2: small", f"smollm2: {{pools: small, {settings}}}")

    assert problems_of(text) == [f"4: models.smollm2.{said}"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("plan: fre", 'plan: plan "fre" does not exist; did you mean "free"?'),
        ("weight: 0", "weight: must be at least 1, not 0"),
        ("limits: {concurency: 1}", 'limits.concurency: unknown key; did you mean "concurrency"?'),
        ("limits: {requests_per_minute: 0}", "limits.requests_per_minute: must be at least 1, not 0"),
    ],
)
def test_what_a_tenant_is_given_is_checked(settings: str, said: str) -> None:
    assert problems_of(SMALL.replace("demo: {}", f"demo: {{{settings}}}")) == [f"6: tenants.demo.{said}"]


@pytest.mark.parametrize("name", ["a b", "a//b", "/a", "a/", f"{'a' * 64}/{'b' * 65}", "/".join(["step"] * 60)])
def test_a_tenant_is_a_path_of_names(name: str) -> None:
    text = SMALL.replace("demo: {}", f'"{name}": {{}}').replace("tenant: demo", f'tenant: "{name}"')

    assert problems_of(text) == [
        (
            f"6: tenants.{name}: a tenant's name is made of up to 64 letters, digits, and . _ -, "
            "or of several such with / between them"
        )
    ]


def test_a_pool_without_endpoints_is_refused() -> None:
    assert problems_of(small_with_endpoint("")) == [
        (
            "2: pools.small.endpoints: names no endpoint; list the address of at least one engine, "
            "or say in fleet where they come from"
        )
    ]


def test_a_pool_shared_by_models_must_say_what_its_engines_call_theirs() -> None:
    assert problems_of(SMALL.replace("smollm2: small", "a: small\n  b: small")) == [
        (
            '2: pools.small.served_model: missing; models "a", "b" share this pool, '
            "so say under which name its engines know theirs"
        )
    ]


def test_names_that_cannot_travel_in_headers_and_metrics_are_refused() -> None:
    text = small_with_classes('"two words": {band: 0}').replace("smollm2", '"caf\xe9"')

    assert problems_of(text) == [
        "4: models.caf\xe9: a model's name is made of up to 256 letters, digits, and . _ : / @ + -",
        "9: classes.two words: a name is made of up to 64 letters, digits, and . _ -",
    ]


def test_names_that_metrics_give_to_something_else_are_refused() -> None:
    text = SMALL.replace("small", "gateway").replace("demo", "other") + "classes: {none: {band: 0}, other: {band: 1}}\n"
    spare = text.replace(
        "pools:\n", "pools:\n  other: {engine: vllm, endpoints: ['http://127.0.0.1:1'], in_flight_max: 1}\n"
    )

    assert [each.partition(": ")[2] for each in problems_of(spare)] == [
        'pools.other: metrics give what is of no pool of the policy the name "other"; choose another',
        'pools.gateway: metrics give what is of the gateway itself the name "gateway"; choose another',
        'tenants.other: metrics give the tenants that are not told apart the name "other"; choose another',
        'classes.none: metrics give what ended before it had a class the name "none"; choose another',
        'classes.other: metrics give what is of no class of the policy the name "other"; choose another',
    ]


def test_a_model_needs_a_pool_and_references_must_exist() -> None:
    text = small_with("  x: {models: [nope], classes: [interactive]}", "classes: {chat: {band: 0, pools: [nope]}}")
    text = text.replace("smollm2: small", "smollm2: small\n  empty: []").replace("anonymous_tenant: demo\n", "")

    assert problems_of(text) == [
        "5: models.empty.pools: names no pool; name the pools that serve this model",
        '8: tenants.x.classes[0]: class "interactive" does not exist; there is chat',
        '8: tenants.x.models[0]: model "nope" does not exist; there is smollm2, empty',
        '9: classes.chat.pools[0]: pool "nope" does not exist; there is small',
    ]


def test_a_tier_selects_one_class() -> None:
    assert problems_of(small_with_classes("interactive: {}", "mine: {band: 0, service_tiers: fast}")) == [
        '10: classes.mine.service_tiers[0]: tier "fast" already selects class "interactive"; keep it in one of them'
    ]


def test_a_key_belongs_to_one_tenant() -> None:
    text = small_with(f"  acme: {{keys: [{DIGEST}, {DIGEST}]}}", "key_secret: 0123456789abcdef")
    text = text.replace("anonymous_tenant: demo\n", "")

    assert problems_of(text) == ['7: tenants.acme.keys[1]: is already a key of tenant "acme"; keep it in one place']


def test_keys_need_a_secret() -> None:
    assert problems_of(SMALL.replace("demo: {}", f"demo: {{keys: {DIGEST}}}")) == [
        (
            '1: key_secret: missing, but tenant "demo" has keys, which are hashed under it; '
            "write ${HEADGATE_KEY_SECRET} and export what `headgate keys secret` prints"
        )
    ]


def test_an_anonymous_tenant_that_resembles_none_is_told_how_to_be_added() -> None:
    assert problems_of(SMALL.replace("anonymous_tenant: demo", "anonymous_tenant: laptop")) == [
        '7: anonymous_tenant: tenant "laptop" does not exist; add "laptop: {}" to tenants'
    ]


def test_what_is_allowed_but_probably_not_meant_is_a_warning() -> None:
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
        "2: key_secret: is short enough to be guessed; `headgate keys secret` makes a better one",
        (
            '3: anonymous_tenant: whoever reaches 0.0.0.0 is tenant "demo", without a key; '
            "listen on 127.0.0.1 or remove it"
        ),
        "6: pools.spare: no model uses this pool; name it in models, or remove it",
        (
            "11: tenants.nobody: has no key and is not the anonymous tenant, so nobody can call as it; "
            "`headgate keys new --tenant nobody` makes one"
        ),
        "12: classes: no class takes requests that name neither class nor tier; set unnamed: true on one of them",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            CAPS % "trims_prompt: true",
            "classes.long.caps.trims_prompt: has no effect without a cap on the prompt; set prompt_tokens beside it",
        ),
        (
            CAPS % "best_of: 4",
            (
                "classes.long.caps.best_of: is less than n, so that more answers are made than it allows; "
                "raise it, or lower n to 4"
            ),
        ),
        (
            "classes: {interactive: {caps: {prompt_tokens: 4000}}}",
            (
                "classes.interactive.caps.prompt_tokens: is less than prompt_tokens_max 8000, so longer unnamed "
                "prompts come to this class and are refused; lower prompt_tokens_max to 4000, or set trims_prompt"
            ),
        ),
        (
            "limits: {requests_open_max: 30000}",
            (
                "limits.connections_open_max: is less than requests_open_max 30000, and each open request has a "
                "connection of its own; raise it, or lower requests_open_max"
            ),
        ),
        (
            "classes: {long: {promise: quality, variants: [{level: 2, caps: {n: 1}}]}}",
            (
                "classes.long.variants: are never taken, since a class that promises quality gives nothing up; "
                "remove them, or the promise"
            ),
        ),
        (
            "classes: {long: {variants: [{level: 2}]}}",
            "classes.long.variants[0]: gives nothing up; set caps or model, or remove it",
        ),
        (
            "limits: {headers_max: 31}",
            (
                "limits.headers_max: leaves out ordinary clients, which send about twenty header lines before proxies "
                "add theirs; make it 32 at least"
            ),
        ),
    ],
)
def test_numbers_that_do_not_go_together_are_warned_about(line: str, said: str) -> None:
    assert warnings_of(small_with(line)) == [f"8: {said}"]


@pytest.mark.parametrize(
    "line",
    [
        CAPS % "trims_prompt: true, prompt_tokens: 9",
        CAPS % "n: 4",
        CAPS % "n: unlimited, best_of: unlimited",
        "classes: {interactive: {caps: {prompt_tokens: 4000, trims_prompt: true}}}",
        "classes: {interactive: {caps: {prompt_tokens: 8000}}}",
        "classes: {long: {}, interactive: {unnamed: false, caps: {prompt_tokens: 4000}}}",
        "limits: {requests_open_max: 25000, headers_max: 32}",
        "classes: {long: {promise: cost, variants: [{level: 2, caps: {best_of: 4}}]}}",
        "classes: {long: {band: 2, floor_percent: 60}, batch: {floor_percent: 60}}",
    ],
)
def test_numbers_that_go_together_are_not(line: str) -> None:
    assert warnings_of(small_with(line)) == []


def test_a_rung_that_takes_everything_stands_last() -> None:
    text = SMALL.replace("smollm2: small", "smollm2: {pools: small, rungs: [small, {pools: small, plans: free}]}")

    assert warnings_of(text) == [
        ("4: models.smollm2.rungs[0]: takes every request, so that what stands after it is never reached; put it last")
    ]


def test_a_part_that_may_do_more_than_the_whole_is_warned_about() -> None:
    whole, part = "limits: {concurrency: 5, tokens_per_minute: 9}", "limits: {concurrency: 6, requests_per_minute: 99}"
    text = SMALL.replace("demo: {}", f"demo: {{{whole}}}\n  demo/a/b: {{{part}}}").replace(": demo", ": demo/a/b")

    assert warnings_of(text) == [
        (
            '7: tenants.demo/a/b.limits.concurrency: is more than the 5 of tenant "demo", which it is a part of; '
            "lower it, or raise that"
        )
    ]


def test_a_gateway_without_tenants_is_warned_about() -> None:
    text = SMALL.partition("tenants:")[0]

    assert warnings_of(text) == [
        "1: tenants: there is no tenant, so nobody can call; `headgate keys new --tenant NAME` makes a key"
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_an_anonymous_tenant_behind_a_local_address_needs_no_warning(host: str) -> None:
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
def test_the_pages_about_outcomes_stand_at_a_plain_address(address: str) -> None:
    assert problems_of(small_with(f"error_docs: {address}")) == [
        "8: error_docs: is not the address of a folder of pages; write it as https://HOST/PATH, without ? or #"
    ]
