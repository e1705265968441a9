"""Metric catalogue rows for keys and the ledger."""

from typing import Final

from headgate.telemetry.described import counter, gauge

_DATABASE: Final = "it has a [database](configuration.md#database)"
_LEDGER: Final = "it has a [ledger](configuration.md#ledger)"

ACCOUNTS: Final = (
    gauge(
        "headgate_directory_fresh",
        "",
        "1 while the copy of tenants and keys is known to be whole.",
        "At 0 known keys go on working and unknown ones are answered with 503.",
        when=_DATABASE,
    ),
    gauge(
        "headgate_directory_age_seconds",
        "",
        "Since the database last confirmed that copy.",
        "Infinite as long as it never did.",
        when=_DATABASE,
    ),
    gauge("headgate_directory_tenants", "", "Tenants that the copy holds.", when=_DATABASE),
    gauge("headgate_directory_keys", "", "Keys that the copy holds.", when=_DATABASE),
    counter(
        "headgate_directory_reconnects_total", "", "Connections to the database of keys made anew.", when=_DATABASE
    ),
    gauge("headgate_ledger_database_up", "", "1 while the database of the ledger answers.", when=_LEDGER),
    counter("headgate_ledger_rows_written_total", "", "Rows that the database has from this process.", when=_LEDGER),
    gauge(
        "headgate_ledger_rows_waiting",
        "",
        "Rows that wait for the database, in memory and in the spool.",
        when=_LEDGER,
    ),
    gauge("headgate_ledger_spool_bytes", "", "What they take of the spool on disk.", when=_LEDGER),
    gauge(
        "headgate_ledger_oldest_seconds",
        "",
        "Age of the oldest row that waits.",
        "Usually below a second.",
        when=_LEDGER,
    ),
    counter(
        "headgate_ledger_rows_lost_total",
        "why",
        "Rows that will never be in the database.",
        "`spool`, which was full or could not be written or read; `refused` by the database for what is in them, or "
        "as too old to tell whether they are in it. Anything above 0 needs a look.",
        when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_open_requests",
        "",
        "Requests whose rows are yet to be made.",
        "They or one of their attempts have not ended.",
        when=_LEDGER,
    ),
    counter(
        "headgate_ledger_unrecorded_total",
        "",
        "Attempts that were sent without a note on disk.",
        "The disk of the spool hung or failed, or the journal was full. Their rows are lost if the process is killed.",
        when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_disk_up",
        "",
        "1 while the disk of the spool takes notes and rows, 0 while it hangs or fails.",
        when=_LEDGER,
    ),
)
