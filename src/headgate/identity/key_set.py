"""Public keys of an issuer, from its JSON Web Key Set.

Only the public parameters of asymmetric signature keys are read. Each key is usable only with the algorithms of its
type, so that a public key can never serve as the secret of a symmetric algorithm.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

KEYS_MAX: Final = 100
"""Maximum number of keys in a set."""
_RSA_BITS_MIN: Final = 2048
_RSA_BITS_MAX: Final = 8192
_EXPONENT_BYTES_MAX: Final = 4
"""Larger public exponents make a verification slow."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]+")
_KID_CHARS_MAX: Final = 256
_PublicKey = RSAKey | ECKey | OKPKey


class InvalidKeySet(Exception):
    """The page is not a usable key set. The message gives the reason."""


class _JwksPage(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


class _WebKey(msgspec.Struct, frozen=True):
    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    n: str = ""
    e: str = ""
    crv: str = ""
    x: str = ""
    y: str = ""


class KeySet:
    """The keys of an issuer that can verify signatures. Immutable."""

    __slots__ = ("_by_algorithm", "source")

    def __init__(self, keys: Mapping[_WebKey, _PublicKey]) -> None:
        self.source = frozenset(keys)
        """The keys as published, for comparison with another set."""
        self._by_algorithm: dict[str, dict[str | None, _PublicKey]] = {}
        for key, public in keys.items():
            for algorithm in _algorithms(key):
                self._by_algorithm.setdefault(algorithm, {}).setdefault(key.kid, public)

    def __len__(self) -> int:
        return len(self.source)

    def find(self, algorithm: str, kid: str | None) -> _PublicKey | None:
        """Returns the key for a token. A token without a key ID is accepted if there is only one key to choose."""
        keys = self._by_algorithm.get(algorithm, {})
        if kid is not None:
            return keys.get(kid)
        return next(iter(keys.values())) if len(keys) == 1 else None


def read_key_set(page: bytes) -> KeySet:
    """Parses a key set. Keys of other types and for other uses are skipped. Raises `InvalidKeySet`."""
    try:
        rows = msgspec.json.decode(page, type=_JwksPage).keys
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidKeySet("the response is not a JSON Web Key Set") from error
    if len(rows) > KEYS_MAX:
        raise InvalidKeySet(f"the key set has {len(rows)} keys; at most {KEYS_MAX} are supported")
    found: dict[_WebKey, _PublicKey] = {}
    for row in rows:
        key = _web_key(row)
        if key is not None and (public := _public_key(key)) is not None:
            found[key] = public
    if not found:
        raise InvalidKeySet("the key set contains no usable signature key")
    return KeySet(found)


def verifies(key: _PublicKey, algorithm: str, signed: bytes, signature: bytes) -> bool:
    """Whether the signature was made with the private key of this public key."""
    # The name EdDSA covers two curves; only this one is supported.
    name = "Ed25519" if algorithm == "EdDSA" else algorithm
    try:
        return JWSRegistry.algorithms[name].verify(signed, signature, key)
    except (JoseError, ValueError):
        return False


def _web_key(row: msgspec.Raw) -> _WebKey | None:
    try:
        # The set of known keys compares keys by value, which a list would prevent.
        key = msgspec.json.decode(row, type=_WebKey)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if key.use not in (None, "sig") or (key.key_ops is not None and "verify" not in key.key_ops):
        return None
    if key.kid is not None and len(key.kid) > _KID_CHARS_MAX:
        return None
    return msgspec.structs.replace(key, key_ops=None)


def _algorithms(key: _WebKey) -> tuple[str, ...]:
    """Algorithms that a key may be used with. Empty if its type is not supported."""
    match key.kty:
        case "RSA":
            possible = _RSA
        case "EC":
            possible = (_BY_CURVE[key.crv],) if key.crv in _BY_CURVE else ()
        case "OKP":
            possible = ("EdDSA",) if key.crv == "Ed25519" else ()
        case _:
            possible = ()
    named = "EdDSA" if key.alg == "Ed25519" else key.alg
    return possible if named is None else tuple(each for each in possible if each == named)


def _public_key(key: _WebKey) -> _PublicKey | None:
    if not _algorithms(key):
        return None
    try:
        match key.kty:
            case "RSA" if _is_usable_rsa(key):
                return RSAKey.import_key({"kty": "RSA", "n": key.n, "e": key.e})
            case "EC":
                return ECKey.import_key({"kty": "EC", "crv": key.crv, "x": key.x, "y": key.y})
            case "OKP":
                return OKPKey.import_key({"kty": "OKP", "crv": key.crv, "x": key.x})
            case _:
                return None
    except (JoseError, ValueError, TypeError):
        return None


def _is_usable_rsa(key: _WebKey) -> bool:
    modulus, exponent = decoded(key.n), decoded(key.e)
    if modulus is None or exponent is None or len(exponent.lstrip(b"\0")) > _EXPONENT_BYTES_MAX:
        return False
    return _RSA_BITS_MIN <= int.from_bytes(modulus).bit_length() <= _RSA_BITS_MAX


def decoded(text: str) -> bytes | None:
    """Decodes base64url without padding. Returns None if the text is anything else."""
    if _BASE64.fullmatch(text) is None or len(text) % 4 == 1:
        return None
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def decode_json(data: bytes) -> dict[str, Any] | None:
    """Decodes a JSON object. Returns None for anything else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
