"""Options for a fleet of engine processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.fleets.ray.options import RayOptions
from headgate.model.units import MINUTE, SECOND, Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    command: tuple[str, ...]
    """Program and arguments. They may contain `{port}` and other placeholders."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables added to the gateway's own environment. Values may contain placeholders and secrets."""
    working_directory: str | None = None
    """Working directory. None for the gateway's own."""
    log_directory: str | None = None
    """Directory for the log files, one per endpoint.

    If None, a new directory is created each time the gateway starts.
    """
    port_range: tuple[int, int] = (20_000, 29_999)
    """Port range.

    It is below the system's ephemeral ports, because otherwise an outgoing connection could take the port while the
    engine is loading.
    """
    scheme: str = "http"
    """Scheme of the endpoints' URLs, `http` or `https`."""
    in_flight_max: int
    endpoint_count: int = 1
    """Initial endpoint count. It stays constant if the pool is not autoscaled."""
    start_timeout_ns: Duration = Duration(10 * MINUTE)
    """Maximum time for an engine to become ready. An engine that takes longer counts as crashed."""
    stop_timeout_ns: Duration = Duration(10 * SECOND)
    """Time between SIGTERM and SIGKILL."""
    restart_backoff_ns: Duration = Duration(1 * SECOND)
    """Backoff after the first crash. It doubles with each subsequent crash, up to `restart_backoff_ns_max`."""
    restart_backoff_ns_max: Duration = Duration(1 * MINUTE)
    """Maximum backoff. Once an engine has served for this long, its earlier crashes no longer count."""
    device: str = ""
    zone: str = ""
    ray: RayOptions | None = None
    """Ray cluster that runs the processes. If None, they run on the gateway's own machine."""
