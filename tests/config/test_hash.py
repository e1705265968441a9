"""Hash of a configuration."""

import hashlib

import pytest

from tests.config.builders import SMALL, settings_of, small_with

DIGEST = "hmac-sha256:" + "ab" * 32
SECRET = "key_secret: ${S}"


def hash_of(text: str, **environ: str) -> str:
    return settings_of(text, environ).hash


def test_hash_is_sixteen_stable_hex_digits() -> None:
    assert hash_of(SMALL) == hash_of(SMALL)
    assert len(bytes.fromhex(hash_of(SMALL))) == 8


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\n" + SMALL,
        small_with("drain_grace: 30s", "retry: {attempts_max: 3}", "health:"),
        small_with("classes: {interactive: {}, long: {}, batch: {}}"),
        small_with("degradation: {enabled: true}", "shedding: {}", "fairness_depth: 1"),
        SMALL.replace("demo: {}", "demo: {weight: 100, plan: standard, limits: {}}"),
        small_with("classes: {interactive: {}, long: {caps: {n: 8, output_tokens: unlimited}}, batch: {}}"),
        SMALL.replace("8081", "8081/").replace("smollm2: small", "smollm2: {pools: [small]}"),
    ],
)
def test_equivalent_files_have_the_same_hash(same: str) -> None:
    assert hash_of(same) == hash_of(SMALL)


def test_irrelevant_order_does_not_change_the_hash() -> None:
    pools = [
        "  a: {engine: vllm, in_flight_max: 1, endpoints: [http://a, http://b]}",
        "  c: {engine: vllm, in_flight_max: 1, endpoints: [http://c]}",
    ]
    turned = [pools[1], pools[0].replace("http://a, http://b", "http://b, http://a")]
    models = ["  m: [a, c]", "  n: [c]"]
    tenants = ["  t: {}", "  u: {}"]

    def file(pools: list[str], models: list[str], tenants: list[str]) -> str:
        served = [pool.replace("engine", "served_model: x, engine") for pool in pools]
        return "\n".join(["pools:", *served, "models:", *models, "tenants:", *tenants])

    assert hash_of(file(pools, models, tenants)) == hash_of(file(turned, models[::-1], tenants[::-1]))


@pytest.mark.parametrize(
    "other",
    [
        small_with("drain_grace: 31s"),
        small_with("listen: 127.0.0.1:8082"),
        small_with("limits: {requests_open_max: 1}"),
        small_with("limits: {keepalive_timeout: 76s}"),
        small_with("classes: {interactive: {}, long: {caps: {n: 7}}, batch: {}}"),
        small_with("classes: {interactive: {}, long: {caps: {reasoning_effort: none}}, batch: {}}"),
        SMALL.replace("engine: llamacpp", "engine: llamacpp, forward_priority: true"),
        SMALL.replace("engine: llamacpp", "engine: llamacpp, always_stream_upstream: true"),
        small_with("retry: {tenant_budget_percent: 11}"),
        small_with("error_docs_url: https://docs.example.com"),
        small_with("quote_engine_errors: true"),
        small_with("classes: {long: {}, interactive: {}, batch: {}}"),
        small_with(SECRET),
        SMALL.replace("in_flight_max: 4", "in_flight_max: 5"),
        SMALL.replace("in_flight_max: 4", "in_flight_max: 4, speed: tiny"),
        SMALL.replace("in_flight_max: 4", "in_flight_max: 4, kv_tokens: 1000"),
        SMALL.replace('"http://127.0.0.1:8081"', "{url: 'http://127.0.0.1:8081', device: d}"),
        SMALL.replace("demo: {}", "demo: {weight: 99}"),
        SMALL.replace("demo: {}", "demo: {plan: free}"),
        SMALL.replace("demo: {}", "demo: {limits: {concurrency: 1}}"),
        small_with("classes: {interactive: {ttft: 1s}, long: {}, batch: {}}"),
        small_with("classes: {interactive: {degradation_steps: [{level: 2, model: smollm2}]}, long: {}, batch: {}}"),
        small_with("headroom: {kv_percent: 94}"),
        small_with("zone: a"),
        SMALL.replace("8081", "8082"),
        SMALL.replace("smollm2", "smollm3"),
        SMALL.replace("anonymous_tenant: demo", ""),
        SMALL.replace("demo: {}", f"demo: {{keys: ['{DIGEST}']}}") + SECRET,
    ],
)
def test_changed_setting_changes_the_hash(other: str) -> None:
    assert hash_of(other, S="s" * 20) != hash_of(SMALL)


def test_changed_secret_changes_the_hash() -> None:
    pool = SMALL.replace("engine: llamacpp", "engine: llamacpp, api_key: '${S}'")

    for text in (small_with(SECRET), pool):
        assert hash_of(text, S="one" * 10) != hash_of(text, S="two" * 10)


def test_moved_secret_changes_the_hash() -> None:
    pool = SMALL.replace("engine: llamacpp", "engine: llamacpp, api_key: '${S}'")

    assert hash_of(small_with(SECRET), S="one" * 10) != hash_of(pool, S="one" * 10)


def test_hash_stretches_the_secret() -> None:
    """Metrics publish the hash, so guessing the secret must be expensive."""
    guess = hashlib.sha256(b"s" * 20).hexdigest()

    assert hash_of(small_with(SECRET), S="s" * 20) not in guess


def test_second_key_secret_changes_the_hash_and_one_in_a_list_does_not() -> None:
    one, other = "the first of two secrets", "the second of two secrets"
    alone = settings_of(SMALL + f"key_secret: {one}\n")
    listed = settings_of(SMALL + f"key_secret: [{one}]\n")
    both = settings_of(SMALL + f"key_secret: [{one}, {other}]\n")
    swapped = settings_of(SMALL + f"key_secret: [{other}, {one}]\n")

    assert alone.hash == listed.hash
    assert len({alone.hash, both.hash, swapped.hash}) == 3
    assert both.key_secret == one.encode()
    assert both.key_secret_ids == (alone.key_secret_ids[0], swapped.key_secret_ids[0])
    assert len(both.key_secret_ids[0]) == 8
