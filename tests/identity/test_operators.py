"""Operators with tokens: their names, roles and permissions."""

from typing import Any

import pytest

from headgate.identity.operators import TokenOperators
from headgate.identity.options import OperatorTokenOptions
from headgate.identity.tokens import TokenCounts
from headgate.ports.admin_roles import Role, permissions_of
from headgate.ports.identity import InvalidToken, TokenFault, UnknownTokenKey
from testing.fake_issuer import AUDIENCE, signing_key, token_of
from tests.identity.test_tokens import ISSUER, NOW_S, issuer_with

OPERATORS = "operators"
OPTIONS = OperatorTokenOptions(
    "corp",
    (OPERATORS,),
    ((Role.ADMIN, ("platform", "root")), (Role.OPERATOR, ("on-call",)), (Role.ACCOUNTANT, ("finance",))),
)


def operators(counts: TokenCounts | None = None) -> TokenOperators:
    known = counts or TokenCounts(lambda *_: None)
    return TokenOperators(issuer_with(required_claims=(("scope", ("infer",)),)), OPTIONS, known, now_s=lambda: NOW_S)


def a_token(**changed: Any) -> str:
    return token_of(ISSUER, **{"aud": OPERATORS, "groups": ["on-call"], **changed})


@pytest.mark.parametrize(
    ("groups", "roles"),
    [
        (["on-call"], [Role.OPERATOR]),
        ("on-call", [Role.OPERATOR]),
        (["finance", "on-call", "others"], [Role.ACCOUNTANT, Role.OPERATOR]),
        (["root"], [Role.ADMIN]),
        (["ON-CALL"], []),
        (["on-call "], []),
        ("on-call platform", []),
        ([["platform"]], []),
        ({"platform": True}, []),
        ([], []),
        (None, []),
        (True, []),
    ],
)
def test_claim_gives_roles(groups: object, roles: list[Role]) -> None:
    operator = operators().operator(a_token(groups=groups))

    assert operator.name == "corp:alice"
    assert operator.permissions == permissions_of(roles)


def test_permissions_of_several_roles_add_up() -> None:
    assert permissions_of([Role.OPERATOR, Role.ACCOUNTANT]) == {"read", "cost", "operate", "budgets"}


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], None, "", "operator", [OPERATORS + "x"]])
def test_token_for_callers_is_not_accepted(audience: object) -> None:
    counts = TokenCounts(lambda *_: None)
    with pytest.raises(InvalidToken) as raised:
        operators(counts).operator(a_token(aud=audience))

    assert raised.value.fault is TokenFault.AUDIENCE
    assert counts.rejected[TokenFault.AUDIENCE] == 1


@pytest.mark.parametrize("name", [None, "", 5, "a\nb", "a\x1b[1m", "x" * 201, ["alice"]])
def test_name_must_be_a_short_printable_text(name: object) -> None:
    with pytest.raises(InvalidToken) as raised:
        operators().operator(a_token(sub=name))

    assert raised.value.fault is TokenFault.CLAIMS


def test_unknown_key_is_not_counted_as_rejected_before_the_keys_are_read_again() -> None:
    counts = TokenCounts(lambda *_: None)
    with pytest.raises(UnknownTokenKey):
        operators(counts).operator(a_token(key=signing_key("new", "ES256", number=7)))

    assert sum(counts.rejected.values()) == 0


def test_accepted_tokens_are_counted_by_the_name_of_the_issuer() -> None:
    counts = TokenCounts(lambda *_: None)
    operators(counts).operator(a_token())

    assert counts.accepted == {"corp": 1}
