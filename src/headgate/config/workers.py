"""The configuration of several workers on one port (`headgate serve --workers N`): whether a file allows it, and what
each worker makes of it."""

from dataclasses import replace
from pathlib import Path

from headgate.config.settings import Address, Settings


def as_worker(settings: Settings, *, worker: int, workers: int, port: int) -> Settings:
    """What one of them makes of the file: an admin port of its own, and at least as many members as there are here."""
    admin = settings.admin_listen
    return replace(
        settings,
        listen=Address(settings.listen.host, settings.listen.port or port),
        admin_listen=Address(admin.host, admin.port and admin.port + worker),
        scaler_listen=settings.scaler_listen if worker == 0 else None,
        cell=settings.cell and replace(settings.cell, members=max(settings.cell.members, workers)),
    )


def unfit(settings: Settings, file: Path, workers: int) -> str | None:
    """Why they cannot run by this file, with the next step."""
    if settings.cell is None:
        return (
            f"{file} names no cell, and workers that do not know of each other would give the same place twice; "
            "add cell: {store: redis://HOST:PORT} to it, or leave --workers out"
        )
    first = settings.admin_listen.port
    if first == 0:
        return None
    ports = range(first, first + workers)
    taken = f"the admin listeners of {workers} workers take the ports {ports[0]} to {ports[-1]}"
    if ports[-1] > 65_535:
        return f"{taken}, which do not exist; choose a lower admin_listen in {file}"
    others = {"listen": settings.listen, "scaler_listen": settings.scaler_listen}
    for setting, address in others.items():
        if address is not None and address.port in ports:
            return f"{taken}, and {setting} is among them; choose another port for it in {file}"
    return None
