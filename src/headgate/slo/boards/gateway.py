"""Dashboards of the gateway process and its cell."""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, rate, tail

CELL: Final = Dashboard(
    "headgate-cell",
    "Headgate: cell",
    (
        Panel(
            "Cell mode",
            (("max by (instance, mode) (headgate_cell_mode) == 1", "{{instance}}: {{mode}}"),),
            kind="stat",
        ),
        Panel("Leader", (("max by (instance) (headgate_cell_leads) == 1", "{{instance}}"),), kind="stat"),
        Panel(
            "Members",
            (
                (gauge("headgate_cell_members", of="max")[0], "members"),
                (gauge("headgate_cell_members_absent", of="max")[0], "absent"),
            ),
        ),
        Panel("Store up", (gauge("headgate_cell_store_up", "instance", of="min"),)),
        Panel("Store round trip", (gauge("headgate_cell_store_round_trip_seconds", "instance", of="max"),), "s"),
        Panel(
            "Store errors",
            (
                (rate("headgate_cell_store_reconnects_total", "instance")[0], "{{instance}} reconnects"),
                (rate("headgate_cell_store_timeouts_total", "instance")[0], "{{instance}} timeouts"),
                (rate("headgate_cell_entries_passed_over_total", "instance")[0], "{{instance}} unreadable entries"),
            ),
        ),
        Panel("Unacknowledged messages", (gauge("headgate_cell_unacknowledged", "instance"),)),
        Panel("Island share divisor", (gauge("headgate_cell_share_of", "instance", of="max"),)),
    ),
)

GATEWAY: Final = Dashboard(
    "headgate-gateway",
    "Headgate: gateway",
    (
        Panel(
            "Event loop lag",
            tuple(tail("headgate_loop_lag_seconds", each, "instance") for each in (0.5, 0.99)),
            "s",
            says="The lag delays every stream.",
        ),
        Panel(
            "Longest event loop iteration",
            (gauge("headgate_loop_turn_longest_seconds", "instance", "clock", "since", of="max"),),
            "s",
            says="A long iteration delays every stream by its duration.",
        ),
        Panel("CPU", (rate("headgate_process_cpu_seconds_total", "instance"),), "percentunit"),
        Panel("Scheduler busy", (rate("headgate_decide_seconds_total", "instance"),), "percentunit"),
        Panel("Resident memory", (gauge("headgate_process_resident_bytes", "instance"),), "bytes"),
        Panel(
            "Tracked objects",
            (gauge("headgate_held", "instance", "what"),),
            says="The counts fall when traffic does.",
        ),
        Panel(
            "Configurations and versions",
            (
                (gauge("headgate_config_info", "hash", of="count")[0], "configuration {{hash}}"),
                (gauge("headgate_build_info", "version", of="count")[0], "version {{version}}"),
            ),
            kind="stat",
            says="More than one configuration for a long time means that a reload did not reach every gateway.",
        ),
        Panel(
            "Directory replica",
            (
                (gauge("headgate_directory_fresh", "instance", of="min")[0], "{{instance}} fresh"),
                (gauge("headgate_directory_age_seconds", "instance", of="max")[0], "{{instance}} age (s)"),
                (rate("headgate_directory_reconnects_total", "instance")[0], "{{instance}} reconnects"),
            ),
        ),
        Panel(
            "Ledger rows",
            (
                (rate("headgate_ledger_rows_written_total", "instance")[0], "{{instance}} written"),
                (gauge("headgate_ledger_rows_waiting", "instance")[0], "{{instance}} waiting"),
                (gauge("headgate_ledger_open_requests", "instance")[0], "{{instance}} not yet created"),
                (rate("headgate_ledger_rows_lost_total", "instance", "why")[0], "{{instance}} lost ({{why}})"),
                (rate("headgate_ledger_unrecorded_total", "instance")[0], "{{instance}} sent without a journal entry"),
            ),
        ),
        Panel(
            "Ledger database",
            (
                (gauge("headgate_ledger_database_up", "instance", of="min")[0], "{{instance}} database up"),
                (gauge("headgate_ledger_disk_up", "instance", of="min")[0], "{{instance}} disk writable"),
                (gauge("headgate_ledger_oldest_seconds", "instance", of="max")[0], "{{instance}} oldest row (s)"),
            ),
        ),
        Panel(
            "Traces",
            (
                (rate("headgate_traces_kept_total", "why")[0], "kept ({{why}})"),
                (rate("headgate_traces_sent_total")[0], "exported"),
                (rate("headgate_traces_dropped_total", "why")[0], "dropped ({{why}})"),
                (rate("headgate_trace_posts_failed_total")[0], "failed exports"),
                (gauge("headgate_traces_waiting")[0], "waiting"),
            ),
        ),
        Panel(
            "Request records",
            (
                (rate("headgate_records_written_total", "instance")[0], "{{instance}} written"),
                (rate("headgate_records_dropped_total", "instance")[0], "{{instance}} dropped"),
                (gauge("headgate_records_waiting", "instance")[0], "{{instance}} waiting"),
            ),
        ),
        Panel("Request record storage", (gauge("headgate_records_bytes", "instance", of="max"),), "bytes"),
        Panel("Oldest request record age", (gauge("headgate_records_oldest_seconds", "instance", of="max"),), "s"),
        Panel("Ledger spool size", (gauge("headgate_ledger_spool_bytes", "instance"),), "bytes"),
    ),
)
