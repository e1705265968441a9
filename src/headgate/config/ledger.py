"""Options for the ledger and for budget notifications.

Without `ledger`, nothing is recorded. The spool directory, in which rows wait for the database, has no default: it must
survive the process, and only the operator knows which directory does.

A webhook URL is often a secret, so no message quotes it. `NotificationOptions` has the complete URL for requests, and a
version with only the host for display.
"""

import re
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from headgate.config.problems import ConfigReport
from headgate.config.schema import ConfigFile, LedgerSection
from headgate.config.schema_reader import available, suggestion
from headgate.control.options import NotificationOptions
from headgate.ledger.options import LedgerOptions

METADATA_MAX: Final = 16
"""Maximum number of metadata keys per request."""

_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_IDLE_COST_MODES: Final = ("platform", "shared")
_ROLL_UP_MODES: Final = ("none", "hourly")
_DISK_FAILURE_MODES: Final = ("serve", "reject")
_WEBHOOK: Final = ("notifications", "webhook")


def ledger_options(file: ConfigFile, report: ConfigReport) -> LedgerOptions | None:
    ledger = file.ledger
    if ledger is None:
        return None
    if file.database is None:
        report.add_problem(("ledger",), "needs a PostgreSQL database; set database.url", contents_valid=True)
    if not report.has_problem(("ledger", "spool_directory")) and not PurePath(ledger.spool_directory).is_absolute():
        wrong = "must be an absolute path; start it with /"
        report.add_problem(("ledger", "spool_directory"), wrong)
    for name, value, modes in (
        ("roll_up", ledger.roll_up, _ROLL_UP_MODES),
        ("idle_cost", ledger.idle_cost, _IDLE_COST_MODES),
        ("on_disk_failure", ledger.on_disk_failure, _DISK_FAILURE_MODES),
    ):
        if value not in modes:
            hint = suggestion(value, modes, otherwise=available(modes))
            report.add_problem(("ledger", name), f'"{value}" is not a valid value{hint}')
    _check_metadata(ledger, report)
    return LedgerOptions(
        spool_directory=ledger.spool_directory,
        spool_bytes_max=ledger.spool_bytes_max,
        retention_days=ledger.retention,
        roll_up_hourly=ledger.roll_up == "hourly",
        metadata_keys=tuple(ledger.metadata_keys),
        share_idle_cost=ledger.idle_cost == "shared",
        reject_unrecorded=ledger.on_disk_failure == "reject",
    )


def unit_key(file: ConfigFile) -> str | None:
    return None if file.ledger is None else file.ledger.unit_key


def _check_metadata(ledger: LedgerSection, report: ConfigReport) -> None:
    place = ("ledger", "metadata_keys")
    for number, key in enumerate(ledger.metadata_keys):
        if not _KEY.fullmatch(key):
            report.add_problem((*place, number), "must have 1 to 64 characters: letters, digits, and . _ -")
        elif key in ledger.metadata_keys[:number]:
            report.add_problem((*place, number), f'"{key}" is listed twice; remove one')
    if len(ledger.metadata_keys) > METADATA_MAX:
        report.add_problem(place, f"has more than {METADATA_MAX} keys, the maximum per request; remove some")
    if ledger.unit_key is not None and ledger.unit_key not in ledger.metadata_keys:
        hint = suggestion(ledger.unit_key, ledger.metadata_keys, otherwise="; add it there")
        report.add_problem(("ledger", "unit_key"), f'"{ledger.unit_key}" is not in ledger.metadata_keys{hint}')


def notification_options(file: ConfigFile, report: ConfigReport) -> NotificationOptions | None:
    if file.notifications is None:
        return None
    if file.database is None and not _has_budgets(file):
        report.add_warning(("notifications",), "has no effect without budgets; add budgets to tenants or classes")
    return NotificationOptions(file.notifications.webhook, _redacted_webhook(file.notifications.webhook, report))


def _has_budgets(file: ConfigFile) -> bool:
    sections = (*file.tenants.values(), *(file.classes or {}).values())
    return any(each.budgets.day or each.budgets.month for each in sections)


def _redacted_webhook(text: str, report: ConfigReport) -> str:
    """URL reduced to its host; empty if the URL is invalid, which is reported."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        report.add_problem(_WEBHOOK, "is not a valid URL; write it as https://HOST/PATH")
        return ""
    if url.scheme not in ("http", "https") or not host or re.search(r"[\s\\]", text):
        report.add_problem(_WEBHOOK, "is not an HTTP URL; write it as https://HOST/PATH")
        return ""
    there = f"[{host}]" if ":" in host else host
    whole = f"{url.scheme}://{there}" + ("" if port is None else f":{port}")
    return whole if text.rstrip("/") == whole else f"{whole}/***"
