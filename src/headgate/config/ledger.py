"""What is written down of requests, where does it wait, and who is told that money runs out?

Left out, nothing is. The folder in which rows wait for the database has no usual place: it must outlive the process,
and only whoever runs it knows which one does (in Kubernetes a volume, else a folder of the machine).

The address for notices often is a secret as a whole. So no message repeats any part of it, and it comes out in two
forms: as it was written, for whoever posts, and with nothing but its host, for everybody else.
"""

import re
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from headgate.config.problems import Report
from headgate.config.schema import File, LedgerSection
from headgate.config.shape import suggestion
from headgate.control.options import NotificationOptions
from headgate.ledger.options import LedgerOptions

METADATA_MAX: Final = 16
"""So many keys a request may have."""

_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_IDLE: Final = ("platform", "shared")
_DISK_FAILS: Final = ("serve", "refuse")
_WEBHOOK: Final = ("notices", "webhook")


def ledger_options(file: File, report: Report) -> LedgerOptions | None:
    ledger = file.ledger
    if ledger is None:
        return None
    if file.database is None:
        report.problem(("ledger",), "has nowhere to be written; name a PostgreSQL in database.url", read=True)
    if not report.is_wrong(("ledger", "spool")) and not PurePath(ledger.spool).is_absolute():
        wrong = "is not a whole path, so a start from another folder would not find what waits; begin it with /"
        report.problem(("ledger", "spool"), wrong)
    if ledger.idle not in _IDLE:
        hint = suggestion(ledger.idle, _IDLE, quiet=f"; there is {', '.join(_IDLE)}")
        report.problem(("ledger", "idle"), f'nobody is called "{ledger.idle}" here{hint}')
    if ledger.when_disk_fails not in _DISK_FAILS:
        hint = suggestion(ledger.when_disk_fails, _DISK_FAILS, quiet=f"; write {' or '.join(_DISK_FAILS)}")
        report.problem(("ledger", "when_disk_fails"), f'"{ledger.when_disk_fails}" is not a mode{hint}')
    _check_metadata(ledger, report)
    return LedgerOptions(
        spool=ledger.spool,
        spool_bytes_max=ledger.spool_max,
        retention_days=ledger.retention,
        metadata=tuple(ledger.metadata),
        shares_idle=ledger.idle == "shared",
        refuses_unrecorded=ledger.when_disk_fails == "refuse",
    )


def unit(file: File) -> str | None:
    return None if file.ledger is None else file.ledger.unit


def _check_metadata(ledger: LedgerSection, report: Report) -> None:
    place = ("ledger", "metadata")
    for number, key in enumerate(ledger.metadata):
        if not _KEY.fullmatch(key):
            report.problem((*place, number), "a key is made of up to 64 letters, digits, and . _ -; write one such")
        elif key in ledger.metadata[:number]:
            report.problem((*place, number), f'"{key}" is named twice; keep one')
    if len(ledger.metadata) > METADATA_MAX:
        report.problem(place, f"names more than {METADATA_MAX} keys, which is all a request may have; name fewer")
    if ledger.unit is not None and ledger.unit not in ledger.metadata:
        hint = suggestion(ledger.unit, ledger.metadata, quiet=f"; add {ledger.unit} to ledger.metadata")
        report.problem(("ledger", "unit"), f'"{ledger.unit}" is not among the metadata that is kept{hint}')


def notification_options(file: File, report: Report) -> NotificationOptions | None:
    if file.notices is None:
        return None
    if file.database is None and not _has_budgets(file):
        report.warn(("notices",), "nothing is ever told, since there is no budget; add budgets to tenants or classes")
    return NotificationOptions(file.notices.webhook, _shown(file.notices.webhook, report))


def _has_budgets(file: File) -> bool:
    sections = (*file.tenants.values(), *(file.classes or {}).values())
    return any(each.budgets.day or each.budgets.month for each in sections)


def _shown(text: str, report: Report) -> str:
    """Its host alone; empty where it is wrong, which is reported."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        report.problem(_WEBHOOK, "cannot be read; write it as https://HOST/PATH")
        return ""
    if url.scheme not in ("http", "https") or not host or re.search(r"[\s\\]", text):
        report.problem(_WEBHOOK, "is no address that can be posted to; write it as https://HOST/PATH")
        return ""
    there = f"[{host}]" if ":" in host else host
    whole = f"{url.scheme}://{there}" + ("" if port is None else f":{port}")
    return whole if text.rstrip("/") == whole else f"{whole}/***"
