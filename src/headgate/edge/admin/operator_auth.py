"""Operator authentication by keys, signed tokens and sessions.

Operator keys are stored as keyed hashes, like callers' keys, but the two kinds are separate. A presented key is
compared with all known hashes in constant time, so that timing reveals nothing. Tokens are verified by
`headgate.identity`.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from headgate.edge.auth import bearer_token, looks_like_token
from headgate.edge.client import Client
from headgate.ports.admin_roles import Operator
from headgate.ports.identity import InvalidToken, OperatorTokens, TokenFault, UnknownTokenKey
from headgate.wire.keys import digest

_RETRY_AFTER: Final = (b"retry-after", b"5")


class AdminRejection(Exception):
    """An admin request was rejected. The message is for the operator. Status 503 implies `Retry-After`."""

    def __init__(self, status: int, code: str, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = [*headers, _RETRY_AFTER] if status == 503 else headers


class BrowserSessions(Protocol):
    """Sessions of operators who have logged in with a browser."""

    def operator(self, client: Client) -> Operator | None:
        """Returns the operator of a session. None if the request has no valid session. Raises `AdminRejection`."""
        ...


class OperatorAuth:
    """Authenticates operators by their keys and, if configured, by tokens and sessions."""

    def __init__(
        self,
        secrets: Collection[bytes],
        keys: Mapping[bytes, Operator],
        tokens: OperatorTokens | None = None,
        sessions: BrowserSessions | None = None,
    ) -> None:
        """`keys` contains the operator for each hash. A key may be hashed with any of the `secrets`."""
        self._secrets = secrets
        self._keys = keys
        self._tokens = tokens
        self._sessions = sessions

    async def operator(self, client: Client) -> Operator:
        """Returns the operator who sent a request. Raises `AdminRejection`."""
        authorization = client.headers.get(b"authorization")
        sessions = self._sessions if authorization is None else None
        if sessions is not None and (operator := sessions.operator(client)) is not None:
            return operator
        presented = bearer_token(authorization)
        if (found := self._find(presented)) is not None:
            return found
        if self._tokens is not None and looks_like_token(presented):
            return await self._token_operator(self._tokens, presented)
        either = " or token" if self._tokens is not None else ""
        raise AdminRejection(
            401,
            "invalid_api_key",
            f"missing or unknown operator key{either}; send one as `Authorization: Bearer KEY`",
        )

    def _find(self, presented: str) -> Operator | None:
        found = None
        for secret in self._secrets:
            shown = digest(secret, presented)
            for known, operator in self._keys.items():
                if hmac.compare_digest(known, shown):
                    found = operator
        return found

    async def _token_operator(self, tokens: OperatorTokens, token: str) -> Operator:
        try:
            try:
                return tokens.operator(token)
            except UnknownTokenKey as unknown:
                return await tokens.reread_operator(token, unknown)
        except InvalidToken as invalid:
            raise token_rejection(invalid) from None


def token_rejection(invalid: InvalidToken) -> AdminRejection:
    """Returns the response to an invalid token, without the details, which are in the log."""
    match invalid.fault:
        case TokenFault.UNVERIFIED:
            message = "the token cannot be verified, because its issuer is unreachable; retry"
            return AdminRejection(503, "key_unverified", message)
        case TokenFault.EXPIRED:
            message = "the token has expired; request a new one from its issuer"
        case _:
            message = "the token is not valid for operators of this gateway; the gateway's log contains the reason"
    return AdminRejection(401, "invalid_api_key", message)
