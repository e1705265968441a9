"""Signed browser sessions of operators, and the secrets of logins in progress.

Nothing is stored. All gateways with the same `key_secret` accept each other's sessions, so a browser may reach any of
them through a load balancer. A session contains the operator's name and roles, and ends at a fixed time. The secrets of
a login (state, nonce and code verifier) are derived from a random ID in a cookie, so only a gateway can compute them.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.ports.admin_roles import Operator, Role, permissions_of

LOGIN_S_MAX: Final = 600
"""Maximum time between the start and the end of a login."""
MEMBER_S_MAX: Final = 30
"""Lifetime of the tokens that gateways in a cell use to authenticate to each other."""
MEMBER_PREFIX: Final = "hgm."
_COOKIE_BYTES_MAX: Final = 3_500


class SessionContent(msgspec.Struct, frozen=True):
    """Signed content of a session cookie."""

    id: str
    name: str
    roles: tuple[str, ...]
    expires_at_s: int
    client_id: str
    """Client ID for which the identity provider authenticated the operator."""


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A valid session."""

    operator: Operator
    csrf: str
    """Value that a request must repeat in a header if it changes something."""


@dataclass(frozen=True, slots=True)
class LoginSecrets:
    """Secrets of one login in progress."""

    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        return _text(hashlib.sha256(self.verifier.encode()).digest())


class SessionSigner:
    """Creates and verifies cookies and member tokens with any of the key secrets. New ones use the first secret."""

    def __init__(self, key_secrets: Sequence[bytes], *, now_s: Callable[[], float] = time.time) -> None:
        self._key_secrets = tuple(key_secrets)
        self._now_s = now_s

    # Sessions

    def open_session(self, name: str, roles: Sequence[Role], client_id: str, lifetime_s: float) -> str:
        """Returns the value of a session cookie."""
        expires_at_s = int(self._now_s() + lifetime_s)
        content = SessionContent(secrets.token_urlsafe(16), name, tuple(roles), expires_at_s, client_id)
        return self._signed(b"session", msgspec.json.encode(content))

    def session(self, cookie: str, client_id: str) -> BrowserSession | None:
        """Returns the session of a cookie. None if it is invalid, has expired or is for another client."""
        found = self._verified(b"session", cookie)
        if found is None:
            return None
        secret, data = found
        try:
            content = msgspec.json.decode(data, type=SessionContent)
            roles = [Role(each) for each in content.roles]
        except (msgspec.DecodeError, ValueError):
            return None  # Another version of the gateway has created it.
        if content.expires_at_s <= self._now_s() or content.client_id != client_id:
            return None
        operator = Operator(content.name, permissions_of(roles), content.expires_at_s)
        return BrowserSession(operator, _derived(secret, b"csrf", content.id.encode()))

    # Logins

    def open_login(self) -> tuple[str, LoginSecrets]:
        """Returns the cookie of a new login, and its secrets."""
        content = f"{secrets.token_urlsafe(32)}.{int(self._now_s()) + LOGIN_S_MAX}".encode()
        return self._signed(b"login", content), _login_secrets(self._key_secrets[0], content)

    def login(self, cookie: str) -> LoginSecrets | None:
        """Returns the secrets of the login in progress. None if the cookie is invalid or too old."""
        found = self._verified(b"login", cookie)
        if found is None or int(found[1].rpartition(b".")[2]) <= self._now_s():
            return None
        return _login_secrets(*found)

    # Other gateways of the cell

    def member_token(self) -> str:
        """Returns a token that lets this gateway read another gateway's pages."""
        return MEMBER_PREFIX + self._signed(b"member", str(int(self._now_s()) + MEMBER_S_MAX).encode())

    def is_member_token(self, token: str) -> bool:
        if not token.startswith(MEMBER_PREFIX):
            return False
        found = self._verified(b"member", token.removeprefix(MEMBER_PREFIX))
        return found is not None and self._now_s() < int(found[1]) <= self._now_s() + 10 * MEMBER_S_MAX

    # Signatures

    def _signed(self, purpose: bytes, data: bytes) -> str:
        return f"{_text(data)}.{_derived(self._key_secrets[0], purpose, data)}"

    def _verified(self, purpose: bytes, text: str) -> tuple[bytes, bytes] | None:
        """Returns the secret that the text was signed with, and its content."""
        encoded, _, signature = text.partition(".")
        data = _data(encoded) if len(text) <= _COOKIE_BYTES_MAX and text.isascii() else None
        if data is None:
            return None
        for secret in self._key_secrets:
            if hmac.compare_digest(_derived(secret, purpose, data), signature):
                return secret, data
        return None


def cookie_value(headers: Mapping[bytes, bytes], name: str) -> str:
    """Returns the value of a cookie. Empty if it is missing or occurs twice."""
    pairs = (each.strip().partition("=") for each in headers.get(b"cookie", b"").decode("latin-1").split(";"))
    values = [value for found, _, value in pairs if found == name]
    return values[0] if len(values) == 1 else ""


def _login_secrets(secret: bytes, content: bytes) -> LoginSecrets:
    state, nonce, verifier = (_derived(secret, purpose, content) for purpose in (b"state", b"nonce", b"verifier"))
    return LoginSecrets(state, nonce, verifier)


def _derived(secret: bytes, purpose: bytes, data: bytes) -> str:
    """Returns a value that only a holder of the secret can compute, and that differs for each purpose."""
    key = hmac.digest(secret, b"headgate admin " + purpose, hashlib.sha256)
    return _text(hmac.digest(key, data, hashlib.sha256))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _data(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
