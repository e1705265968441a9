"""Hash of a configuration."""

import hashlib

import pytest

from tests.config.builders import SMALL, settings_of, small_with
from tests.config.variants import DIFFERENT, EQUIVALENT, SECRET


def hash_of(text: str, **environ: str) -> str:
    return settings_of(text, environ).hash


def test_hash_is_sixteen_stable_hex_digits() -> None:
    assert hash_of(SMALL) == hash_of(SMALL)
    assert len(bytes.fromhex(hash_of(SMALL))) == 8


@pytest.mark.parametrize("same", EQUIVALENT)
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


@pytest.mark.parametrize("other", DIFFERENT)
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
