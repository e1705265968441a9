"""Only usable public signature keys are read from a key set."""

import json
from typing import Any

import pytest
from joserfc.jwk import OctKey

from headgate.identity.key_set import KEYS_MAX, InvalidKeySet, KeySet, read_key_set
from testing.fake_issuer import base64url, signing_key

RSA, EC = signing_key("rsa", "RS256"), signing_key("ec", "ES256")


def read(*keys: Any) -> KeySet:
    return read_key_set(json.dumps({"keys": keys}).encode())


@pytest.mark.parametrize(
    "page",
    [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": 5}', b'{"keys": []}', b"\xff", b"[" * 100_000, b'{"keys": [[]]}'],
)
def test_other_pages_are_rejected(page: bytes) -> None:
    with pytest.raises(InvalidKeySet):
        read_key_set(page)


@pytest.mark.parametrize(
    "changed",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "XYZ"},
        {"kty": 5},
        {"alg": "HS256"},
        {"alg": "RSA-OAEP"},
        {"kid": "x" * 300},
        {"n": ""},
        {"n": "!!"},
        {"n": base64url(b"\xff" * 128)},
        {"n": base64url(b"\xff" * 2_048)},
        {"e": base64url(b"\xff" * 64)},
        {"e": base64url(b"\x02")},
        {"e": base64url(b"\x00")},
    ],
    ids=str,
)
def test_unusable_keys_are_skipped(changed: dict[str, Any]) -> None:
    keys = read(EC.public(), RSA.public(**changed))

    assert len(keys) == 1
    assert keys.find("RS256", "rsa") is None
    assert keys.find("ES256", "ec") is not None


@pytest.mark.parametrize("changed", [{"crv": "P-384"}, {"crv": "secp256k1"}, {"x": "AA"}, {"y": ""}, {"crv": "none"}])
def test_points_that_are_not_on_the_curve_are_skipped(changed: dict[str, Any]) -> None:
    keys = read(RSA.public(), EC.public(**changed))

    assert len(keys) == 1


def test_secret_of_a_symmetric_algorithm_is_never_a_key() -> None:
    secret = {**OctKey.generate_key(256).as_dict(), "kid": "shared"}

    assert read(EC.public(), secret).find("HS256", "shared") is None


def test_only_the_public_part_of_a_published_private_key_is_read() -> None:
    key = read({**EC.private.as_dict(private=True), "kid": "ec"}).find("ES256", "ec")

    assert key is not None
    assert not key.is_private


def test_key_that_names_an_algorithm_is_used_only_with_it() -> None:
    keys = read(RSA.public(alg="PS256"))

    assert keys.find("PS256", "rsa") is not None
    assert keys.find("RS256", "rsa") is None


def test_number_of_keys_is_limited() -> None:
    with pytest.raises(InvalidKeySet, match=f"at most {KEYS_MAX}"):
        read(*(EC.public(kid=str(number)) for number in range(KEYS_MAX + 1)))


def test_first_of_two_keys_with_the_same_id_is_used() -> None:
    other = signing_key("ec", "ES256", number=9)

    found = read(EC.public(), other.public()).find("ES256", "ec")

    assert found is not None
    assert found.as_dict() == read(EC.public()).find("ES256", "ec").as_dict()  # type: ignore[union-attr]
