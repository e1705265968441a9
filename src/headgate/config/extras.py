"""Optional libraries required by a configuration. Without them, `headgate serve` does not start."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final, NamedTuple

from headgate.config.settings import Settings
from headgate.fleets.dns.options import DnsOptions

_LIBRARIES: Final = {
    "cell": ("hiredis", "hiredis"),
    "dns": ("dns", "dnspython"),
    "kubernetes": ("grpc", "grpcio"),
    "ledger": ("asyncpg", "asyncpg"),
    "oidc": ("joserfc", "joserfc"),
    "tracing": ("opentelemetry.proto", "opentelemetry-proto"),
}
"""Module and library name of each extra."""


class MissingExtra(NamedTuple):
    place: str
    """The setting that requires the library."""
    message: str
    fix: str


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # The parent package is missing.
        return False


def missing_extras(settings: Settings, installed: Callable[[str], bool] = is_installed) -> Iterator[MissingExtra]:
    for place, purpose, extra in _needed(settings):
        module, library = _LIBRARIES[extra]
        if not installed(module):
            yield MissingExtra(place, f"{purpose}: {library} is not installed", f"pip install 'headgate[{extra}]'")


def _needed(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """For each required library: its setting, the error if the library is missing, and the extra that installs it."""
    if settings.cell is not None:
        yield "cell", "cannot use the store", "cell"
    if settings.database is not None:
        yield "database", "cannot use PostgreSQL", "ledger"
    if settings.issuers:
        yield "identity", "cannot verify tokens", "oidc"
    if settings.tracing is not None:
        yield "tracing", "cannot send traces", "tracing"
    if settings.scaler_listen is not None:
        yield "scaler_listen", "cannot serve KEDA", "kubernetes"
    for pool in settings.pools:
        match pool.fleet:
            case DnsOptions(port=port, nameserver=nameserver) if port is None or nameserver is not None:
                yield f"pools.{pool.name}.fleet", "cannot query a name server", "dns"
            case _:
                pass
