"""Options of a fleet of engine processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.fleets.ray.options import RayOptions
from headgate.model.units import MINUTE, SECOND, Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    command: tuple[str, ...]
    """Its words may contain `{port}` and the other placeholders."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Added to the gateway's own environment; values may contain placeholders, and secrets."""
    folder: str | None = None
    """Working directory; None for the gateway's own."""
    logs: str | None = None
    """Folder of the log files, one per endpoint; None creates a new folder each time the gateway starts."""
    ports: tuple[int, int] = (20_000, 29_999)
    """Port range. Below the ports that the system gives to outgoing connections, since one of these could take the
    port while the engine is loading."""
    in_flight_max: int
    endpoints: int = 1
    """Number of endpoints at the start, and constant if the pool is not scaled."""
    start_ns_max: Duration = Duration(10 * MINUTE)
    """An engine that does not serve after this time counts as crashed."""
    stop_ns_max: Duration = Duration(10 * SECOND)
    """An engine that is still running this long after it was asked to end is killed."""
    restart_ns: Duration = Duration(1 * SECOND)
    """The pause after a crash; each is twice the one before, up to `restart_ns_max`."""
    restart_ns_max: Duration = Duration(1 * MINUTE)
    """An engine that has served for this long has its earlier crashes forgotten."""
    device: str = ""
    zone: str = ""
    ray: RayOptions | None = None
    """None runs the processes on the gateway's own machine."""
