"""Settings for workers that share one port (`headgate serve --workers N`)."""

from dataclasses import replace
from pathlib import Path

from headgate.config.settings import Address, Settings


def worker_settings(settings: Settings, *, worker: int, workers: int, port: int) -> Settings:
    """Settings for one worker, with its own admin port and at least as many cell members as workers."""
    admin = settings.admin_listen
    return replace(
        settings,
        listen=Address(settings.listen.host, settings.listen.port or port),
        admin_listen=Address(admin.host, admin.port and admin.port + worker),
        scaler_listen=settings.scaler_listen if worker == 0 else None,
        cell=settings.cell and replace(settings.cell, member_count=max(settings.cell.member_count, workers)),
    )


def workers_problem(settings: Settings, file: Path, workers: int) -> str | None:
    """Why workers cannot run with this file, with the next step; None if they can."""
    if settings.cell is None:
        return (
            f"{file} has no cell, so the workers could not share slots and limits; "
            "add cell: {store: redis://HOST:PORT} to it, or remove --workers"
        )
    first = settings.admin_listen.port
    if first == 0:
        return None
    ports = range(first, first + workers)
    taken = f"the admin listeners of {workers} workers need the ports {ports[0]} to {ports[-1]}"
    if ports[-1] > 65_535:
        return f"{taken}, but the highest port is 65535; choose a lower admin_listen in {file}"
    others = {"listen": settings.listen, "scaler_listen": settings.scaler_listen}
    for setting, address in others.items():
        if address is not None and address.port in ports:
            return f"{taken}, which include {setting}; choose another port for it in {file}"
    return None
