"""Options of a fleet whose endpoints are the addresses of a DNS name."""

from dataclasses import dataclass

from headgate.model.units import MINUTE, SECOND, Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsOptions:
    name: str
    port: int | None = None
    """None resolves services (SRV), whose records include the ports."""
    nameserver: tuple[str, int] | None = None
    """None uses the system's resolver."""
    in_flight_max: int
    every_ns: Duration = Duration(5 * SECOND)
    misses_max: int = 3
    """Consecutive answers without an address before its endpoint leaves."""
    empty_ns_max: Duration = Duration(1 * MINUTE)
    """How long answers must name no address before the fleet is emptied."""
    zone: str = ""
    starting_name: str | None = None
    """A name that also has the addresses of engines that are not ready yet; None if such addresses are not listed."""
