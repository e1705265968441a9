"""Keys and TLS contexts for the admin listeners of a fleet's cells."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from headgate.control.cells.options import CellFleet
from headgate.control.options import FileStamp, file_stamp
from headgate.ports.tls import ClientTlsOptions, named_client_context


class AdminAccess:
    """Finds the operator's key and the TLS context for each process."""

    def __init__(self, fleet: CellFleet, default_key: str | None) -> None:
        """`default_key` is for cells without a key of their own."""
        self._default_key = default_key
        self._keys: dict[str, str | None] = {}
        self._tls: dict[str, ClientTlsOptions] = {}
        self._contexts: dict[ClientTlsOptions, tuple[list[FileStamp], ssl.SSLContext]] = {}
        self.change_fleet(fleet)

    def change_fleet(self, fleet: CellFleet) -> None:
        processes = [(url, cell) for cell in fleet.cells for url in cell.admin_urls]
        self._keys = {url: cell.admin_key for url, cell in processes}
        self._tls = {url: cell.admin_tls for url, cell in processes if cell.admin_tls is not None}
        used = set(self._tls.values())
        self._contexts = {options: each for options, each in self._contexts.items() if options in used}

    def headers(self, process: str) -> Mapping[str, str]:
        key = self._keys.get(process) or self._default_key
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def context(self, process: str) -> ssl.SSLContext | None:
        """Returns the context, or None for the system's authorities. Raises `InvalidTlsFile`.

        Files that have changed are read again, because certificates are renewed while the controller runs.
        """
        options = self._tls.get(process)
        if options is None:
            return None
        stamps = [file_stamp(Path(file)) for file in options.files]
        known = self._contexts.get(options)
        if known is None or known[0] != stamps:
            known = self._contexts[options] = (stamps, named_client_context(options))
        return known[1]


def cells_without_key(fleet: CellFleet) -> list[str]:
    """Returns the cells that need a default key."""
    return [cell.name for cell in fleet.cells if cell.admin_urls and cell.admin_key is None]
