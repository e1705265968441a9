"""TLS contexts for the pools' engines, which are replaced when their files change on disk."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from headgate.config.settings import PoolSettings
from headgate.control.file_watch import FileWatch
from headgate.engines.engine_tls import EngineTls
from headgate.ports.fleet import FleetEndpoint
from headgate.ports.tls import ClientTlsOptions
from headgate.telemetry.log import log_event


class PoolEndpoint(NamedTuple):
    pool: PoolSettings
    endpoint: FleetEndpoint
    tls: EngineTls | None
    """TLS of the connections to the endpoint. None if they do not use TLS."""


class PoolTls:
    def __init__(self) -> None:
        self._by_options: dict[ClientTlsOptions, EngineTls] = {}
        """Pools with the same options share a context."""
        self._renewed: Callable[[EngineTls], None] = lambda _: None
        self._watch = FileWatch(self._files, self._reload)

    def change_to(self, pools: Iterable[PoolSettings]) -> None:
        before = self._by_options
        wanted = dict.fromkeys(_options(pool) for pool in pools if pool.uses_tls)
        self._watch.add([Path(file) for options in wanted for file in options.files])
        self._by_options = {options: before.get(options) or EngineTls(options) for options in wanted}

    def of(self, pool: PoolSettings) -> EngineTls | None:
        """Returns the TLS of a pool in the current configuration. None if its engines do not use TLS."""
        return self._by_options[_options(pool)] if pool.uses_tls else None

    def problems(self) -> list[str]:
        """Returns why files cannot be used at present. Their earlier contents stay in use."""
        return [each.problem for each in self._by_options.values() if each.problem is not None]

    async def run(self, on_renewed: Callable[[EngineTls], None]) -> None:
        """Watches the files until cancelled. `on_renewed` is called with each TLS whose context has been replaced."""
        self._renewed = on_renewed
        await self._watch.run()

    async def _reload(self) -> None:
        for each in list(self._by_options.values()):
            if each.options.files:
                await _reload(each, self._renewed)

    def _files(self) -> set[Path]:
        return {Path(file) for options in self._by_options for file in options.files}


async def _reload(tls: EngineTls, on_renewed: Callable[[EngineTls], None]) -> None:
    files = ", ".join(tls.options.files)
    if await tls.reload():
        log_event(logging.INFO, "new connections to engines use the changed TLS files", files=files)
        on_renewed(tls)
    else:
        kept = "the TLS files for engines cannot be used; their previous contents stay in use"
        log_event(logging.ERROR, kept, problem=tls.problem, files=files)


def _options(pool: PoolSettings) -> ClientTlsOptions:
    return pool.tls or ClientTlsOptions()
