"""Tokens are accepted only with a valid signature by a published key, and with valid claims."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from headgate.identity.issuer_keys import IssuerKeys
from headgate.identity.key_set import KeySet, read_key_set
from headgate.identity.options import ALGORITHMS, IssuerOptions
from headgate.identity.tokens import TOKEN_BYTES_MAX, TokenCounts, TokenTenants, tenant_of
from headgate.ports.identity import InvalidToken, TokenFault, UnknownTokenKey
from testing.fake_issuer import AUDIENCE, FakeIssuer, SigningKey, base64url, claims_of, compact, signing_key, token_of

RSA, EC = signing_key("rsa", "RS256"), signing_key("ec", "ES256")
NOW_S = 1_800_000_000.0
"""Time at which all tokens are issued and verified, so that no test depends on the clock."""
ISSUER = FakeIssuer(EC, url="https://login.example.com", now_s=lambda: NOW_S)
OTHER = FakeIssuer(EC, url="https://elsewhere.example.com", now_s=lambda: NOW_S)


def no_fetch(*_: Any) -> Any:
    raise AssertionError


def issuer_with(*keys: Mapping[str, Any], **options: Any) -> IssuerKeys:
    usual = {"name": "corp", "issuer": ISSUER.url, "audience": (AUDIENCE,), "tenant": "acme/{team}"}
    issuer = IssuerKeys(IssuerOptions(**{**usual, **options}), no_fetch)
    issuer.keys = read_key_set(json.dumps({"keys": keys or [RSA.public(), EC.public()]}).encode())
    issuer.problem = None
    return issuer


def tenants_of(issuer: IssuerKeys, now_s: float = NOW_S, **options: Any) -> TokenTenants:
    found = TokenTenants([issuer], TokenCounts(lambda *_: None), now_s=lambda: now_s, **options)
    found.is_known = lambda tenant: tenant in ("acme/search", "acme/mail", "bolt")
    return found


def fault_of(token: str, issuer: IssuerKeys | None = None, now_s: float = NOW_S) -> TokenFault:
    with pytest.raises(InvalidToken) as raised:
        tenants_of(issuer or issuer_with(), now_s).tenant(token)
    return raised.value.fault


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_supported_algorithm_verifies_its_own_signature_only(algorithm: str) -> None:
    key, other = signing_key("k", algorithm), signing_key("k", algorithm, number=1)
    issuer = issuer_with(key.public(), algorithms=(algorithm,))

    assert tenants_of(issuer).tenant(token_of(ISSUER, key=key)) == "acme/search"
    assert fault_of(token_of(ISSUER, key=other), issuer) is TokenFault.SIGNATURE


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", "HS256", "HS512", "RS384", "rs256", "ES256K", None, 5, []])
def test_algorithms_that_are_not_on_the_list_are_rejected(alg: object) -> None:
    token = compact({"alg": alg, "kid": "ec"}, claims_of(ISSUER), lambda _: b"x")

    assert fault_of(token) is TokenFault.ALGORITHM


def test_unsigned_token_is_rejected() -> None:
    signed, _, _ = token_of(ISSUER, header={"alg": "none"}).rpartition(".")

    assert fault_of(f"{signed}.") is TokenFault.MALFORMED


@pytest.mark.parametrize("algorithms", [("RS256",), ("RS256", "HS256")])
@pytest.mark.parametrize("form", ["pem", "der", "jwk", "modulus"])
def test_public_key_is_never_the_secret_of_a_symmetric_algorithm(algorithms: tuple[str, ...], form: str) -> None:
    public = RSA.private.public_key
    secret = {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(RSA.public()).encode(),
        "modulus": str(RSA.public()["n"]).encode(),
    }[form]
    forged = compact(
        {"alg": "HS256", "kid": "rsa"}, claims_of(ISSUER), lambda signed: hmac.digest(secret, signed, hashlib.sha256)
    )

    # Even if HS256 could be configured, no published key could be used with it.
    with pytest.raises(InvalidToken) as raised:
        tenants_of(issuer_with(algorithms=algorithms)).tenant(forged)
    assert raised.value.fault in (TokenFault.ALGORITHM, TokenFault.UNKNOWN_KEY)


@pytest.mark.parametrize(
    ("alg", "kid"), [("RS256", "ec"), ("ES256", "rsa")], ids=["an RSA algorithm", "an EC algorithm"]
)
def test_key_is_used_only_with_algorithms_of_its_type(alg: str, kid: str) -> None:
    token = compact({"alg": alg, "kid": kid}, claims_of(ISSUER), EC.sign)

    assert fault_of(token) is TokenFault.UNKNOWN_KEY


@pytest.mark.parametrize(
    "kid", ["../../etc/passwd", "' or 1=1 --", "/dev/null", "", "rsa\0", "x" * 4_000, "https://evil/keys", "__class__"]
)
def test_key_id_only_selects_a_published_key(kid: str) -> None:
    forger = signing_key(kid, "ES256", number=7)

    with pytest.raises(UnknownTokenKey):
        tenants_of(issuer_with()).tenant(token_of(ISSUER, key=forger))


@pytest.mark.parametrize("kid", [5, ["ec"], {"ec": 1}, True])
def test_key_id_that_is_not_a_text_is_rejected(kid: object) -> None:
    assert fault_of(token_of(ISSUER, header={"kid": kid})) is TokenFault.MALFORMED


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c"])
def test_keys_in_the_header_are_ignored(name: str) -> None:
    forger = signing_key("ec", "ES256", number=7)
    header = {name: {"jwk": forger.public(), "x5c": ["MIIB"]}.get(name, "http://127.0.0.1:1/keys")}

    assert fault_of(token_of(ISSUER, key=forger, header=header)) is TokenFault.SIGNATURE
    # A signature by a published key is valid beside them.
    assert tenants_of(issuer_with()).tenant(token_of(ISSUER, header=header)) == "acme/search"


@pytest.mark.parametrize(
    "header", [{"crit": ["exp"]}, {"crit": []}, {"b64": False, "crit": ["b64"]}, {"typ": "logout+jwt"}, {"typ": 7}]
)
def test_extensions_and_other_kinds_of_tokens_are_rejected(header: dict[str, Any]) -> None:
    assert fault_of(token_of(ISSUER, header=header)) is TokenFault.MALFORMED


@pytest.mark.parametrize("kind", ["JWT", "at+jwt", "application/at+jwt"])
def test_access_tokens_may_name_their_type(kind: str) -> None:
    assert tenants_of(issuer_with()).tenant(token_of(ISSUER, header={"typ": kind})) == "acme/search"


def test_changed_header_claims_or_signature_are_rejected() -> None:
    header, claims, signature = token_of(ISSUER).split(".")
    others = token_of(ISSUER, team="mail", header={"extra": 1}).split(".")

    assert fault_of(f"{header}.{others[1]}.{signature}") is TokenFault.SIGNATURE
    assert fault_of(f"{others[0]}.{claims}.{signature}") is TokenFault.SIGNATURE
    assert fault_of(f"{header}.{claims}.{others[2]}") is TokenFault.SIGNATURE
    assert fault_of(f"{header}.{claims}.{signature[:40]}") is TokenFault.SIGNATURE
    assert fault_of(f"{header}.{claims}.{base64url(bytes(64))}") is TokenFault.SIGNATURE


@pytest.mark.parametrize(
    "token",
    [
        "eyJ.eyJ.",
        "eyJ.e.e",
        "eyJhIjoxfQ.eyJhIjoxfQ.a+b",
        "eyJhIjoxfQ.eyJhIjoxfQ=.aaaa",
        f"{base64url(b'[1]')}.{base64url(b'{}')}.aaaa",
        f"{base64url(b'{}')}.{base64url(b'null')}.aaaa",
        f"{base64url(b'{}')}.{base64url(b'[' * 9_000)}.aaaa",
        f"{base64url(b'{')}.{base64url(bytes(range(128, 192)))}.aaaa",
        "e" * (TOKEN_BYTES_MAX + 1),
        "\xff.\xff.\xff",
    ],
)
def test_malformed_tokens_are_rejected(token: str) -> None:
    assert fault_of(token) is TokenFault.MALFORMED


@pytest.mark.parametrize("issuer", [None, 5, [ISSUER.url], ISSUER.url + "/", ISSUER.url.upper(), OTHER.url])
def test_issuer_must_be_exactly_a_configured_one(issuer: object) -> None:
    assert fault_of(token_of(ISSUER, iss=issuer)) is TokenFault.UNKNOWN_ISSUER


@pytest.mark.parametrize(
    "audience", [None, "", "headgat", "headgate ", ["other"], [], {"headgate": 1}, 5, [[AUDIENCE]]]
)
def test_token_for_another_audience_is_rejected(audience: object) -> None:
    assert fault_of(token_of(ISSUER, aud=audience)) is TokenFault.AUDIENCE


def test_one_of_several_audiences_is_enough() -> None:
    assert tenants_of(issuer_with()).tenant(token_of(ISSUER, aud=["other", AUDIENCE])) == "acme/search"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"exp": NOW_S - 30}, TokenFault.EXPIRED),
        ({"exp": 0}, TokenFault.EXPIRED),
        ({"nbf": NOW_S + 31}, TokenFault.NOT_YET_VALID),
        ({"iat": NOW_S + 31}, TokenFault.NOT_YET_VALID),
        ({"exp": None}, TokenFault.CLAIMS),
        ({"exp": "9999999999"}, TokenFault.CLAIMS),
        ({"exp": True}, TokenFault.CLAIMS),
        ({"exp": -1}, TokenFault.CLAIMS),
        ({"exp": 1e300}, TokenFault.CLAIMS),
        ({"nbf": "soon"}, TokenFault.CLAIMS),
        ({"iat": [1]}, TokenFault.CLAIMS),
    ],
)
def test_token_is_valid_only_between_its_times(changed: dict[str, Any], fault: TokenFault) -> None:
    assert fault_of(token_of(ISSUER, **changed)) is fault


@pytest.mark.parametrize("changed", [{"exp": NOW_S - 29}, {"nbf": NOW_S + 30}, {"iat": NOW_S + 30}, {"iat": None}])
def test_clocks_may_differ_by_the_configured_skew(changed: dict[str, Any]) -> None:
    assert tenants_of(issuer_with()).tenant(token_of(ISSUER, **changed)) == "acme/search"


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ({"groups": ["staff", "llm"]}, True),
        ({"groups": "llm"}, True),
        ({"groups": ["staff"]}, False),
        ({"groups": "llm staff"}, False),
        ({}, False),
        ({"groups": {"llm": 1}}, False),
    ],
)
def test_required_claims_need_one_of_their_values(given: dict[str, Any], accepted: bool) -> None:
    issuer = issuer_with(required_claims=(("groups", ("llm", "admins")),))
    if accepted:
        assert tenants_of(issuer).tenant(token_of(ISSUER, **given)) == "acme/search"
    else:
        assert fault_of(token_of(ISSUER, **given), issuer) is TokenFault.CLAIMS


def test_scopes_are_separated_by_spaces_and_booleans_have_texts() -> None:
    issuer = issuer_with(required_claims=(("scope", ("infer",)), ("email_verified", ("true",))))
    token = token_of(ISSUER, scope="openid infer", email_verified=True)

    assert tenants_of(issuer).tenant(token) == "acme/search"


@pytest.mark.parametrize(
    ("template", "claims", "tenant"),
    [
        ("acme", {}, "acme"),
        ("acme/{team}", {"team": "search"}, "acme/search"),
        ("{org}/{team}", {"org": "acme", "team": "mail"}, "acme/mail"),
        ("acme/{https://example.com/team}", {"https://example.com/team": "mail"}, "acme/mail"),
        ("{tenant}", {"tenant": "acme/search/nightly"}, "acme/search/nightly"),
    ],
)
def test_template_makes_a_tenant_from_claims(template: str, claims: dict[str, Any], tenant: str) -> None:
    assert tenant_of(claims, template) == tenant


@pytest.mark.parametrize(
    ("template", "value"),
    [
        *(("acme/{team}", value) for value in ("a/b", "../bolt", "", "{org}", "a b", "x" * 65, "search\n", "é", ".")),
        *(("{team}", value) for value in ("/acme", "acme/", "a//b", "a/b/c/d", "../acme", "acme/search\n")),
        *(("acme/{team}", value) for value in (5, None, ["search"], True)),
    ],
)
def test_claims_cannot_lead_out_of_the_template(template: str, value: object) -> None:
    with pytest.raises(InvalidToken) as raised:
        tenant_of({"team": value, "org": "bolt"}, template)

    assert raised.value.fault is TokenFault.CLAIMS


def test_tenant_must_exist_with_every_request() -> None:
    tenants, token = tenants_of(issuer_with()), token_of(ISSUER)
    assert tenants.tenant(token) == "acme/search"
    tenants.is_known = lambda _: False

    with pytest.raises(InvalidToken) as raised:
        tenants.tenant(token)

    assert raised.value.fault is TokenFault.UNKNOWN_TENANT


# Cache


class CountedKeys(KeySet):
    lookups = 0

    def find(self, algorithm: str, kid: str | None) -> Any:
        self.lookups += 1
        return super().find(algorithm, kid)


def test_known_token_needs_no_second_verification() -> None:
    issuer = issuer_with()
    assert issuer.keys is not None
    issuer.keys = keys = CountedKeys(dict.fromkeys(issuer.keys.source, EC.private))
    tenants, token = tenants_of(issuer), token_of(ISSUER)

    assert [tenants.tenant(token) for _ in range(3)] == ["acme/search"] * 3
    assert keys.lookups == 1


def test_cached_token_expires() -> None:
    issuer, now_s = issuer_with(), NOW_S
    tenants = TokenTenants([issuer], TokenCounts(lambda *_: None), now_s=lambda: now_s)
    tenants.is_known = lambda _: True
    token = token_of(ISSUER, exp=NOW_S + 10)
    assert tenants.tenant(token) == "acme/search"
    now_s = NOW_S + 40

    with pytest.raises(InvalidToken) as raised:
        tenants.tenant(token)

    assert (raised.value.fault, len(tenants)) == (TokenFault.EXPIRED, 0)


def test_cached_token_ends_with_its_key() -> None:
    issuer, token = issuer_with(), token_of(ISSUER)
    tenants = tenants_of(issuer)
    tenants.tenant(token)
    issuer.keys = read_key_set(json.dumps({"keys": [RSA.public()]}).encode())

    with pytest.raises(UnknownTokenKey):
        tenants.tenant(token)


def test_cache_is_bounded_and_drops_the_oldest_token() -> None:
    tenants = tenants_of(issuer_with(), cached_max=2)
    for number in range(5):
        tenants.tenant(token_of(ISSUER, jti=str(number)))

    assert len(tenants) == 2


def test_rejected_tokens_are_not_cached() -> None:
    tenants = tenants_of(issuer_with())
    for number in range(5):
        with pytest.raises(InvalidToken):
            tenants.tenant(token_of(ISSUER, aud="other", jti=str(number)))

    assert len(tenants) == 0


def test_accepted_and_rejected_tokens_are_counted() -> None:
    reasons: list[TokenFault] = []
    counts = TokenCounts(lambda fault, _: reasons.append(fault))
    tenants = TokenTenants([issuer_with()], counts, now_s=lambda: NOW_S)
    tenants.is_known = lambda _: True
    for token in (token_of(ISSUER), token_of(ISSUER), token_of(ISSUER, exp=1)):
        try:
            tenants.tenant(token)
        except InvalidToken:
            continue

    assert counts.accepted == {"corp": 2}
    assert {fault: count for fault, count in counts.rejected.items() if count} == {TokenFault.EXPIRED: 1}
    assert reasons == [TokenFault.EXPIRED]


# Keys without IDs


def test_token_without_a_key_id_needs_a_single_key() -> None:
    alone = SigningKey(None, "ES256", EC.private)
    token = token_of(ISSUER, key=alone)

    assert tenants_of(issuer_with(EC.public())).tenant(token) == "acme/search"
    assert fault_of(token, issuer_with(EC.public(), signing_key("two", "ES256", 3).public())) is TokenFault.UNKNOWN_KEY
