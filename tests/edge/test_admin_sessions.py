"""Signed sessions, login secrets and member tokens: coverage and lifetime of signatures."""

import base64
import json
import re

import pytest

from headgate.edge.admin.sessions import LOGIN_S_MAX, MEMBER_S_MAX, SessionSigner, cookie_value
from headgate.ports.admin_roles import Role, permissions_of

OLD, NEW = b"an old secret of the gateways", b"a new secret of the gateways"


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def signer(*secrets: bytes, clock: Clock | None = None) -> SessionSigner:
    return SessionSigner(secrets or (NEW,), now_s=clock or Clock())


def opened(by: SessionSigner, lifetime_s: float = 60) -> str:
    return by.open_session("corp:alice", [Role.VIEWER], "console", lifetime_s)


def test_another_gateway_with_the_same_secret_accepts_a_session() -> None:
    session = signer().session(opened(signer()), "console")

    assert session is not None
    assert (session.operator.name, session.operator.permissions) == ("corp:alice", permissions_of([Role.VIEWER]))
    assert session.operator.expires_at_s == Clock.now_s + 60


def test_sessions_outlive_a_rotation_of_the_secret() -> None:
    cookie = opened(signer(OLD))

    assert signer(NEW, OLD).session(cookie, "console") is not None
    assert signer(NEW).session(cookie, "console") is None


def test_session_expires() -> None:
    clock = Clock()
    cookie = opened(signer(clock=clock), lifetime_s=60)
    clock.now_s += 59
    assert signer(clock=clock).session(cookie, "console") is not None
    clock.now_s += 1
    assert signer(clock=clock).session(cookie, "console") is None


def test_session_of_another_client_is_rejected() -> None:
    assert signer().session(opened(signer()), "another") is None


def forged_roles(cookie: str) -> str:
    data, _, signature = cookie.partition(".")
    content = json.loads(base64.urlsafe_b64decode(data + "=="))
    changed = json.dumps({**content, "roles": ["admin"]}).encode()
    return f"{base64.urlsafe_b64encode(changed).rstrip(b'=').decode()}.{signature}"


@pytest.mark.parametrize(
    "change",
    [
        forged_roles,
        lambda cookie: cookie[:-1] + ("A" if cookie[-1] != "A" else "B"),
        lambda cookie: cookie.partition(".")[0],
        lambda cookie: cookie.partition(".")[0] + ".",
        lambda cookie: "." + cookie.partition(".")[2],
        lambda cookie: cookie + "=",
        lambda cookie: cookie + "é",
        lambda _: "",
        lambda _: ".",
        lambda _: "x" * 10_000,
    ],
)
def test_changed_session_is_rejected(change: "object") -> None:
    assert callable(change)
    assert signer().session(change(opened(signer())), "console") is None


def test_signature_for_one_purpose_is_invalid_for_another() -> None:
    login, _ = signer().open_login()
    member = signer().member_token()

    for text in (login, member, member.removeprefix("hgm.")):
        assert signer().session(text, "console") is None
    assert signer().login(opened(signer())) is None
    assert signer().login(member.removeprefix("hgm.")) is None
    assert not signer().is_member_token(f"hgm.{login}")
    assert not signer().is_member_token(f"hgm.{opened(signer())}")


def test_login_secrets_are_unguessable_and_the_same_on_every_gateway() -> None:
    cookie, secrets = signer().open_login()
    _, others = signer().open_login()

    assert signer().login(cookie) == secrets
    assert len({*(secrets.state, secrets.nonce, secrets.verifier), *(others.state, others.nonce, others.verifier)}) == 6
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", secrets.verifier), "43 to 128 characters (RFC 7636, section 4.1)"
    for secret in (secrets.state, secrets.nonce, secrets.verifier):
        assert secret not in cookie
    stranger = signer(OLD).login(cookie)
    assert stranger is None


def test_challenge_matches_the_example_in_the_rfc() -> None:
    """RFC 7636, appendix B."""
    from headgate.edge.admin.sessions import LoginSecrets

    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert LoginSecrets("", "", verifier).challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_login_and_member_token_expire() -> None:
    clock = Clock()
    now = signer(clock=clock)
    (cookie, _), member = now.open_login(), now.member_token()
    assert now.login(cookie) is not None
    assert now.is_member_token(member)
    clock.now_s += MEMBER_S_MAX
    assert not now.is_member_token(member)
    clock.now_s += LOGIN_S_MAX
    assert now.login(cookie) is None


def test_csrf_token_differs_between_sessions() -> None:
    one, other = (signer().session(opened(signer()), "console") for _ in range(2))

    assert one is not None
    assert other is not None
    assert one.csrf != other.csrf


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"a=1", "1"),
        (b"b=2; a=1; c=3", "1"),
        (b" a=1 ;b=2", "1"),
        (b"a=x=y", "x=y"),
        (b"a=1; a=2", ""),
        (b"aa=1", ""),
        (b"A=1", ""),
        (b"", ""),
        (b"a", ""),
        (b"\xff=1; a=1", "1"),
    ],
)
def test_cookie_value(header: bytes, value: str) -> None:
    assert cookie_value({b"cookie": header}, "a") == value
