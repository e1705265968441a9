"""Admin paths for the share controller (`headgate cells run`)."""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from headgate.edge.admin.api import STEP, TEXT, AdminBody, AdminRoute
from headgate.model.limits import WHOLE_PPM
from headgate.ports.directory import Actor

_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Ppm = Annotated[int, Meta(ge=0, le=WHOLE_PPM)]
_Account = Annotated[str, Meta(pattern=rf"^{STEP}\Z")]


class ShareAssignment(AdminBody, frozen=True):
    """Shares of tenants' limits. Without the session of this process, only the epoch is recorded."""

    epoch: _Count
    version: _Count
    session: Annotated[str, Meta(max_length=64, pattern=TEXT)] = ""
    stamp_ns: _Count = 0
    lease_ns: _Count = 0
    shares: dict[_Account, _Ppm] = msgspec.field(default_factory=dict[str, int])
    token_shares: dict[_Account, _Ppm] = msgspec.field(default_factory=dict[str, int])


class ShareQuery(AdminBody, frozen=True):
    pass


def share_routes(
    assign: Callable[[ShareAssignment], Mapping[str, object]], report: Callable[[], Mapping[str, object]]
) -> dict[bytes, AdminRoute]:
    """Returns the paths that assign shares to this process, and that report the shares in force and the demand."""

    async def on_assign(asked: ShareAssignment, _: Actor) -> Mapping[str, object]:
        return assign(asked)

    async def on_report(_asked: ShareQuery, _: Actor) -> Mapping[str, object]:
        return report()

    # These changes are not in the database, so there is nothing to wait for.
    return {
        b"/admin/v1/shares/assign": AdminRoute(ShareAssignment, on_assign, writes=False),
        b"/admin/v1/shares/report": AdminRoute(ShareQuery, on_report, writes=False),
    }
