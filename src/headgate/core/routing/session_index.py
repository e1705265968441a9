"""Remembers which endpoint of a pool served each session last.

Callers can name the session that a request belongs to, for example a conversation. The endpoint that served the session
last probably still has its prompt in the cache, even if the prefix index does not know it: the prompt may be too short
for a hash or start with different text. The router therefore prefers that endpoint (`cost_terms.session_preference`).
The preference is never required for routing, so entries can be dropped at any time.
"""

from typing import Final, NamedTuple

from headgate.model.units import EndpointId

SESSIONS_MAX: Final = 16_384
"""Maximum number of sessions in one pool. The session that was served the longest time ago is dropped first."""
_FORGOTTEN_MAX: Final = 4_096
"""Maximum number of endpoints with a known restart. When it is reached, all sessions are dropped."""


class _Visit(NamedTuple):
    endpoint_id: EndpointId
    prompt_tokens: int
    number: int
    """Order number of the visit."""


class SessionIndex:
    __slots__ = ("_count", "_forgotten", "_visits")

    def __init__(self) -> None:
        self._visits: dict[str, _Visit] = {}
        """The last visit of each session, the oldest first."""
        self._forgotten: dict[EndpointId, int] = {}
        """Order number of the last visit before each endpoint's cache was lost."""
        self._count = 0

    @property
    def size(self) -> int:
        return len(self._visits)

    def record(self, session: str, endpoint_id: EndpointId, prompt_tokens: int) -> None:
        """Records that a request of the session was sent to the endpoint."""
        self._count += 1
        self._visits.pop(session, None)
        self._visits[session] = _Visit(endpoint_id, prompt_tokens, self._count)
        if len(self._visits) > SESSIONS_MAX:
            del self._visits[next(iter(self._visits))]

    def last(self, session: str) -> tuple[EndpointId, int] | None:
        """Returns the endpoint that served the session last, and the length of that prompt."""
        visit = self._visits.get(session)
        if visit is None or visit.number <= self._forgotten.get(visit.endpoint_id, 0):
            return None
        return visit.endpoint_id, visit.prompt_tokens

    def forget(self, endpoint_id: EndpointId) -> None:
        """Forgets the sessions of an endpoint whose cache is lost or that no longer accepts requests."""
        if not self._visits:
            return
        self._forgotten[endpoint_id] = self._count
        if len(self._forgotten) > _FORGOTTEN_MAX:
            self._visits.clear()
            self._forgotten.clear()
