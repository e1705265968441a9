"""Configuration of several workers on one port (`headgate serve --workers N`): checks, and settings of each worker."""

from dataclasses import replace
from pathlib import Path

from headgate.config.settings import Address, Settings


def as_worker(settings: Settings, *, worker: int, workers: int, port: int) -> Settings:
    """Settings of one worker: its own admin port, and at least as many cell members as workers."""
    admin = settings.admin_listen
    return replace(
        settings,
        listen=Address(settings.listen.host, settings.listen.port or port),
        admin_listen=Address(admin.host, admin.port and admin.port + worker),
        scaler_listen=settings.scaler_listen if worker == 0 else None,
        cell=settings.cell and replace(settings.cell, members=max(settings.cell.members, workers)),
    )


def unfit(settings: Settings, file: Path, workers: int) -> str | None:
    """Why the workers cannot run with this file, with the next step; None if they can."""
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
