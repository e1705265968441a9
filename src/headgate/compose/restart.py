"""Settings that a running gateway cannot change."""

from headgate.config.settings import Settings


def restart_needed(started: Settings, settings: Settings) -> tuple[str, ...]:
    """Names of the settings that differ from those with which the process was started, and that need a restart."""
    now = _fixed_settings(settings)
    return tuple(name for name, before in _fixed_settings(started).items() if before != now[name])


def _fixed_settings(settings: Settings) -> dict[str, object]:
    ledger = settings.ledger
    return {
        "listen": settings.listen,
        "admin_listen": settings.admin_listen,
        # The files are read again while the gateway runs.
        "listen_tls": settings.listen_tls is None,
        "admin_listen_tls": settings.admin_listen_tls is None,
        "scaler_listen": settings.scaler_listen,
        "cell": settings.cell,
        "state_directory": settings.state_directory,
        "database": settings.database,
        "identity": not settings.issuers,
        "ledger": None
        if ledger is None
        else (
            ledger.spool_directory,
            ledger.spool_bytes_max,
            ledger.retention_days,
            ledger.roll_up_hourly,
            ledger.reject_unrecorded,
        ),
        "notifications": settings.notifications is None,
        "records": settings.records,
        "audit": settings.audit,
    }
