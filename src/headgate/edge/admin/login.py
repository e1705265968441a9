"""Browser login for operators, with the OpenID Connect authorization code flow and PKCE.

`/login` sends the browser to the identity provider, which sends it back to `/login/callback` with a code. The gateway
exchanges the code for an ID token and creates a session in a cookie. State, nonce and code verifier tie the code to the
browser that began the login. The redirect URI is fixed by the configuration. A session ends when it expires or with a
POST to `/login/logout`.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from headgate.edge.admin.operator_auth import AdminRejection, token_rejection
from headgate.edge.admin.sessions import LOGIN_S_MAX, BrowserSession, SessionSigner, cookie_value
from headgate.edge.auth import bearer_token
from headgate.edge.client import Client
from headgate.ports.admin_roles import Operator
from headgate.ports.identity import InvalidToken, LoginUnavailable, OperatorLogin

LOGIN: Final = b"/login"
CALLBACK: Final = b"/login/callback"
LOGOUT: Final = b"/login/logout"
LOGIN_PATHS: Final = (LOGIN, CALLBACK, LOGOUT)
CSRF_HEADER: Final = b"x-headgate-csrf"
EXCHANGES_MAX: Final = 8
"""Maximum number of codes that are exchanged at the same time."""
_QUERY_BYTES_MAX: Final = 8_192
_FIELDS_MAX: Final = 20
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_COMMON: Final = ((b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), _TEXT)


@dataclass(frozen=True, slots=True)
class LoginCookies:
    """Names and attributes of the cookies."""

    secure: bool
    """Whether browsers send the cookies only over HTTPS."""

    @property
    def session(self) -> str:
        return "__Host-headgate_session" if self.secure else "headgate_session"

    @property
    def login(self) -> str:
        return "__Host-headgate_login" if self.secure else "headgate_login"

    def header(self, name: str, value: str, length_s: int) -> tuple[bytes, bytes]:
        """Returns the header that sets a cookie. A length of 0 deletes it."""
        # Strict would hide the cookie when the browser returns from the identity provider.
        text = f"{name}={value}; Path=/; Max-Age={length_s}; HttpOnly; SameSite=Lax{'; Secure' if self.secure else ''}"
        return b"set-cookie", text.encode()


class ConsoleLogin:
    """Pages below `/login`, and the sessions that they create."""

    def __init__(self, provider: OperatorLogin, signer: SessionSigner) -> None:
        self.signer = signer
        self._provider = provider
        self._cookies = LoginCookies(provider.options.redirect_url.startswith("https://"))
        self._exchanging = 0

    def session(self, client: Client) -> BrowserSession | None:
        """Returns the session of a request."""
        return self.signer.session(
            cookie_value(client.headers, self._cookies.session), self._provider.options.client_id
        )

    def operator(self, client: Client) -> Operator | None:
        """Implements `BrowserSessions`. A request that may change something needs the CSRF token."""
        session = self.session(client)
        if session is None:
            return None
        if client.method not in ("GET", "HEAD"):
            self._check_csrf(client, session)
        return session.operator

    def is_member(self, client: Client) -> bool:
        """Whether the request comes from another gateway of the cell."""
        return self.signer.is_member_token(bearer_token(client.headers.get(b"authorization")))

    def member_headers(self) -> Mapping[str, str]:
        """Returns the headers that this gateway sends to read pages of other gateways in its cell."""
        return {"authorization": f"Bearer {self.signer.member_token()}"}

    def _check_csrf(self, client: Client, session: BrowserSession) -> None:
        """Rejects a request that another site may have made the browser send."""
        presented = client.headers.get(CSRF_HEADER, b"")
        if not hmac.compare_digest(presented, session.csrf.encode()):
            message = f"requests with a session must repeat its CSRF token in the header {CSRF_HEADER.decode()}"
            raise AdminRejection(403, "permission_denied", message)

    async def __call__(self, client: Client) -> None:
        try:
            match client.path, client.method:
                case (b"/login", "GET"):
                    await self._begin(client)
                case (b"/login/callback", "GET"):
                    await self._end(client)
                case (b"/login/logout", "POST"):
                    self._log_out(client)
                case (b"/login/logout", "GET"):
                    session = self.session(client)
                    shown = f"You are logged in as {session.operator.name}." if session else "You are not logged in."
                    client.reply(200, _COMMON, f"{shown} Open /login to log in, or /console/.\n".encode())
                case _:
                    allowed = b"GET, POST" if client.path == LOGOUT else b"GET"
                    client.reply(405, [*_COMMON, (b"allow", allowed)], b"method not allowed\n")
        except AdminRejection as rejected:
            client.reply(rejected.status, [*_COMMON, *rejected.headers], f"{rejected.message}\n".encode())

    async def _begin(self, client: Client) -> None:
        if self.session(client) is not None:
            client.reply(303, [*_COMMON, (b"location", b"/console/")], b"logged in\n")
            return
        cookie, secrets = self.signer.open_login()
        try:
            url = await self._provider.authorization_url(secrets.state, secrets.nonce, secrets.challenge)
        except LoginUnavailable as problem:
            raise _unavailable(problem) from None
        set_cookie = self._cookies.header(self._cookies.login, cookie, LOGIN_S_MAX)
        client.reply(303, [*_COMMON, set_cookie, (b"location", url.encode())], b"log in at the identity provider\n")

    async def _end(self, client: Client) -> None:
        given = _query(client.query)
        secrets = self.signer.login(cookie_value(client.headers, self._cookies.login))
        if secrets is None or not hmac.compare_digest(given.get("state", "").encode(), secrets.state.encode()):
            raise _rejected("this login was not started in this browser, or has taken too long")
        if given.get("iss", self._provider.issuer) != self._provider.issuer:
            raise _rejected("the response is from another identity provider")
        if "code" not in given:
            # The provider's text is in the address bar. It is not repeated here, because anyone could have written it.
            raise _rejected("the identity provider has rejected the login")
        if self._exchanging >= EXCHANGES_MAX:
            raise AdminRejection(503, "overloaded", "too many logins at the same time; retry")
        self._exchanging += 1
        try:
            name, roles = await self._provider.sign_in(given["code"], secrets.verifier, secrets.nonce)
        except LoginUnavailable as problem:
            raise _unavailable(problem) from None
        except InvalidToken as invalid:
            raise token_rejection(invalid) from None
        finally:
            self._exchanging -= 1
        if not roles:
            message = f"{name} has no role; an administrator can assign one under identity.operators.roles"
            raise AdminRejection(403, "permission_denied", message)
        options = self._provider.options
        length_s = options.session_lifetime_ns // 1_000_000_000
        session = self.signer.open_session(name, roles, options.client_id, length_s)
        headers = [
            *_COMMON,
            self._cookies.header(self._cookies.session, session, length_s),
            self._cookies.header(self._cookies.login, "", 0),
            (b"location", b"/console/"),
        ]
        client.reply(303, headers, b"logged in\n")

    def _log_out(self, client: Client) -> None:
        if (session := self.session(client)) is not None:
            self._check_csrf(client, session)
        client.reply(200, [*_COMMON, self._cookies.header(self._cookies.session, "", 0)], b"logged out\n")


def _query(query: bytes) -> dict[str, str]:
    """Returns the parameters of the callback. Raises `AdminRejection` if one of them occurs twice."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        pairs = []
    given = dict(pairs)
    if len(query) > _QUERY_BYTES_MAX or len(given) != len(pairs):
        raise _rejected("the parameters are invalid")
    return given


def _rejected(reason: str) -> AdminRejection:
    return AdminRejection(400, "invalid_request_error", f"The login failed: {reason}. Open /login to try again.")


def _unavailable(problem: LoginUnavailable) -> AdminRejection:
    message = f"The identity provider is not available: {problem}. Try again, or use an operator key."
    return AdminRejection(503, "key_unverified", message)
