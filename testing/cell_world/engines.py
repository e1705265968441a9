"""Engines in a simulated cell: they accept any number of attempts and count them."""

from dataclasses import dataclass

from headgate.model.endpoint import Endpoint
from headgate.model.units import Instant, PoolName, RequestId


@dataclass(slots=True)
class Running:
    """One attempt running on an engine."""

    life: tuple[str, int]
    member: str
    """Name of the gateway, which another process may share."""
    request_id: RequestId
    attempt: int
    decider: str
    """Decider that sent the attempt: an epoch, or one period during which a member was an island."""
    kv_tokens: int
    since: Instant
    orphaned: bool = False
    """Whether the gateway has died. The attempt runs until the engine notices."""


class Engine:
    def __init__(self, endpoint: Endpoint, kv_tokens: int) -> None:
        self.endpoint = endpoint
        self.kv_tokens = kv_tokens
        self.running: dict[tuple[tuple[str, int], RequestId, int], Running] = {}
        self.most = 0
        """Highest number of concurrent attempts."""

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
