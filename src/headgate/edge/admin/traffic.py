"""Admin paths that record the traffic of this process (`headgate record`)."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Protocol

from msgspec import Meta
from msgspec.structs import asdict

from headgate.edge.admin.api import AdminBody, AdminRoute
from headgate.model.units import SECOND, Duration
from headgate.ports.directory import Actor
from headgate.ports.traffic import TrafficPage

DURATION_S_MAX: Final = 7 * 86_400


class StartRecording(AdminBody, frozen=True):
    duration_s: Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] = 60
    recent: bool = False
    """Whether to return the requests in memory instead of future ones."""


class ReadRecording(AdminBody, frozen=True):
    recording: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    after: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Number of rows that the reader has. They are discarded."""
    end: bool = False
    """Whether to record no further requests. The recording ends once it has no more rows."""


class RecordingReader(Protocol):
    def __call__(self, name: str, *, after: int, end: bool) -> TrafficPage: ...


def traffic_routes(
    start: Callable[[Duration], TrafficPage], start_recent: Callable[[], TrafficPage], read: RecordingReader
) -> dict[bytes, AdminRoute]:
    """Returns the paths that start a recording, of future or of recent requests, and that read it."""

    async def on_start(asked: StartRecording, _: Actor) -> Mapping[str, object]:
        return asdict(start_recent() if asked.recent else start(Duration(asked.duration_s * SECOND)))

    async def on_read(asked: ReadRecording, _: Actor) -> Mapping[str, object]:
        return asdict(read(asked.recording, after=asked.after, end=asked.end))

    return {
        b"/admin/v1/traffic/start": AdminRoute(StartRecording, on_start, writes=False),
        b"/admin/v1/traffic/read": AdminRoute(ReadRecording, on_read, writes=False),
    }
