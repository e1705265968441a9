"""Admin path that makes a cell's scheduler hand over to another process."""

from collections.abc import Mapping
from typing import Annotated, Final, Protocol

from msgspec import Meta

from headgate.edge.admin.api import TEXT, AdminBody, AdminRoute
from headgate.ports.directory import Actor

PAUSE_S_MAX: Final = 30


class NewHandover(AdminBody, frozen=True):
    pause_s: Annotated[int, Meta(ge=1, le=PAUSE_S_MAX)] = 5
    """Time in seconds during which this process does not become the scheduler again."""
    reason: Annotated[str, Meta(max_length=500, pattern=TEXT)] = ""


class HandOver(Protocol):
    async def __call__(self, actor: Actor, *, pause_s: int, reason: str) -> Mapping[str, object]:
        """Hands over. Raises the exceptions of `OverrideStore`."""
        ...


def handover_routes(hand_over: HandOver) -> Mapping[bytes, AdminRoute]:
    async def on_request(asked: NewHandover, actor: Actor) -> Mapping[str, object]:
        return await hand_over(actor, pause_s=asked.pause_s, reason=asked.reason)

    return {b"/admin/v1/cell/hand-over": AdminRoute(NewHandover, on_request, writes=False)}
