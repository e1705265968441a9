"""What does an engine of a simulated cell do? It answers what it is asked, however much that is, and says how much."""

from dataclasses import dataclass

from headgate.model.endpoint import Endpoint
from headgate.model.units import Instant, PoolName, RequestId


@dataclass(slots=True)
class Running:
    """One attempt at an engine: whose it is, who sent it, and what it holds."""

    life: tuple[str, int]
    member: str
    """Name of its gateway; another process may have the same name."""
    request_id: RequestId
    attempt: int
    decider: str
    """Who sent it: an epoch, or one life of a member as an island."""
    kv_tokens: int
    since: Instant
    orphaned: bool = False
    """Whether its gateway has died: it stays until the engine notices."""


class Engine:
    def __init__(self, endpoint: Endpoint, kv_tokens: int) -> None:
        self.endpoint = endpoint
        self.kv_tokens = kv_tokens
        self.running: dict[tuple[tuple[str, int], RequestId, int], Running] = {}
        self.most = 0
        """The most that was ever there at once."""

    @property
    def pool(self) -> PoolName:
        return self.endpoint.pool

    def start(self, running: Running) -> None:
        self.running[running.life, running.request_id, running.attempt] = running
        self.most = max(self.most, len(self.running))

    def stop(self, life: tuple[str, int], request_id: RequestId, attempt: int) -> Running | None:
        return self.running.pop((life, request_id, attempt), None)

    @property
    def kv_held(self) -> int:
        return sum(each.kv_tokens for each in self.running.values())
