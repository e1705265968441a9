"""How is the gateway itself, and its cell?"""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, rate, tail

CELL: Final = Dashboard(
    "headgate-cell",
    "Headgate: the cell",
    (
        Panel(
            "Whom each goes by",
            (("max by (instance, mode) (headgate_cell_mode) == 1", "{{instance}}: {{mode}}"),),
            kind="stat",
        ),
        Panel("Who leads", (("max by (instance) (headgate_cell_leads) == 1", "{{instance}}"),), kind="stat"),
        Panel(
            "Members",
            (
                (gauge("headgate_cell_members", of="max")[0], "members"),
                (gauge("headgate_cell_members_absent", of="max")[0], "absent"),
            ),
        ),
        Panel("The store answers", (gauge("headgate_cell_store_up", "instance", of="min"),)),
        Panel("Round trip to the store", (gauge("headgate_cell_store_round_trip_seconds", "instance", of="max"),), "s"),
        Panel(
            "Trouble with the store",
            (
                (rate("headgate_cell_store_reconnects_total", "instance")[0], "{{instance}} reconnects"),
                (rate("headgate_cell_store_timeouts_total", "instance")[0], "{{instance}} timeouts"),
                (rate("headgate_cell_entries_passed_over_total", "instance")[0], "{{instance}} unreadable entries"),
            ),
        ),
        Panel("Yet to be acknowledged", (gauge("headgate_cell_unacknowledged", "instance"),)),
        Panel("Parts of an island", (gauge("headgate_cell_share_of", "instance", of="max"),)),
    ),
)

GATEWAY: Final = Dashboard(
    "headgate-gateway",
    "Headgate: the gateway itself",
    (
        Panel(
            "Lateness of the event loop",
            tuple(tail("headgate_loop_lag_seconds", each, "instance") for each in (0.5, 0.99)),
            "s",
            says="Every stream is late by as much.",
        ),
        Panel(
            "Longest turn of the event loop",
            (gauge("headgate_loop_turn_longest_seconds", "instance", "clock", "since", of="max"),),
            "s",
            says="A long turn delays every stream by its length.",
        ),
        Panel("Processor", (rate("headgate_process_cpu_seconds_total", "instance"),), "percentunit"),
        Panel("Deciding", (rate("headgate_decide_seconds_total", "instance"),), "percentunit"),
        Panel("Memory", (gauge("headgate_process_resident_bytes", "instance"),), "bytes"),
        Panel(
            "What could pile up",
            (gauge("headgate_held", "instance", "what"),),
            says="It falls when traffic does.",
        ),
        Panel(
            "Configurations and versions",
            (
                (gauge("headgate_config_info", "hash", of="count")[0], "configuration {{hash}}"),
                (gauge("headgate_build_info", "version", of="count")[0], "version {{version}}"),
            ),
            kind="stat",
            says="More than one configuration for long means that a reload did not reach everybody.",
        ),
        Panel(
            "Tenants and keys",
            (
                (gauge("headgate_directory_fresh", "instance", of="min")[0], "{{instance}} fresh"),
                (gauge("headgate_directory_age_seconds", "instance", of="max")[0], "{{instance}} age in seconds"),
                (rate("headgate_directory_reconnects_total", "instance")[0], "{{instance}} reconnects"),
            ),
        ),
        Panel(
            "Rows of the ledger",
            (
                (rate("headgate_ledger_rows_written_total", "instance")[0], "{{instance}} written"),
                (gauge("headgate_ledger_rows_waiting", "instance")[0], "{{instance}} waiting"),
                (gauge("headgate_ledger_open_requests", "instance")[0], "{{instance}} yet to be made"),
                (rate("headgate_ledger_rows_lost_total", "instance", "why")[0], "{{instance}} lost ({{why}})"),
                (rate("headgate_ledger_unrecorded_total", "instance")[0], "{{instance}} sent without a journal entry"),
            ),
        ),
        Panel(
            "The ledger's database",
            (
                (gauge("headgate_ledger_database_up", "instance", of="min")[0], "{{instance}} answers"),
                (gauge("headgate_ledger_disk_up", "instance", of="min")[0], "{{instance}} disk is writable"),
                (gauge("headgate_ledger_oldest_seconds", "instance", of="max")[0], "{{instance}} oldest row, seconds"),
            ),
        ),
        Panel(
            "Traces",
            (
                (rate("headgate_traces_kept_total", "why")[0], "kept ({{why}})"),
                (rate("headgate_traces_sent_total")[0], "sent"),
                (rate("headgate_traces_dropped_total", "why")[0], "dropped ({{why}})"),
                (rate("headgate_trace_posts_failed_total")[0], "posts that failed"),
                (gauge("headgate_traces_waiting")[0], "waiting"),
            ),
        ),
        Panel(
            "Records of requests",
            (
                (rate("headgate_records_written_total", "instance")[0], "{{instance}} written"),
                (rate("headgate_records_dropped_total", "instance")[0], "{{instance}} dropped"),
                (gauge("headgate_records_waiting", "instance")[0], "{{instance}} waiting"),
            ),
        ),
        Panel("Room for records", (gauge("headgate_records_bytes", "instance", of="max"),), "bytes"),
        Panel("Oldest records", (gauge("headgate_records_oldest_seconds", "instance", of="max"),), "s"),
        Panel("The ledger's spool", (gauge("headgate_ledger_spool_bytes", "instance"),), "bytes"),
    ),
)
