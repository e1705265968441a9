"""Options for a fleet whose endpoints are the addresses of a DNS name."""

from dataclasses import dataclass

from headgate.model.units import MINUTE, SECOND, Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsOptions:
    name: str
    port: int | None = None
    """Port of the endpoints. If None, services (SRV) are resolved instead, whose records include the ports."""
    scheme: str = "http"
    """Scheme of the endpoints' URLs, `http` or `https`."""
    nameserver: tuple[str, int] | None = None
    """Address and port of the name server. None to use the system's resolver."""
    in_flight_max: int
    resolve_interval_ns: Duration = Duration(5 * SECOND)
    misses_max: int = 3
    """Number of consecutive responses without an address before its endpoint is removed."""
    empty_after_ns: Duration = Duration(1 * MINUTE)
    """How long responses must contain no addresses before the fleet is emptied."""
    zone: str = ""
    not_ready_name: str | None = None
    """Name that also lists the addresses of engines that are not ready yet. None if there is no such name."""
