"""In-memory ledger for tests. It never fails and never loses a row."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from headgate.ports.ledger import EndpointTimeRow, UsageRow


class MemoryLedger:
    def __init__(self) -> None:
        self.rows: dict[tuple[int, str, int, int], UsageRow] = {}
        """Usage rows by primary key. The first row with a key wins."""
        self.times: dict[tuple[int, str, str], EndpointTimeRow] = {}

    def add(self, rows: Sequence[UsageRow]) -> None:
        for row in rows:
            # The database stores times in microseconds.
            self.rows.setdefault((row.at // 1_000, row.request, row.attempt, row.correction), row)

    def add_endpoint_times(self, rows: Sequence[EndpointTimeRow]) -> None:
        for row in rows:
            self.times.setdefault((row.at // 1_000, row.endpoint, row.source), row)

    def days(self) -> dict[tuple[Any, ...], tuple[int, ...]]:
        """Daily totals with the same grouping as the reports."""
        sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * 10)
        for row in self.rows.values():
            unknown = ("invalid_request", "forbidden", "unauthorized", "key_unverified", "model_not_found")
            nobodys = row.pool == "" and (row.service_class == "" or row.outcome in unknown)
            model = "" if nobodys else row.model
            names = (row.tenant, row.service_class, model, row.pool, row.payer, row.cause, row.outcome)
            found = sums[(row.at // (86_400 * 10**9), *names)]
            engine_us = row.input_us + row.output_us + row.overhead_us
            seen = row.correction == 0
            amounts = (
                *(int(seen and row.attempt <= 1), int(seen and row.attempt >= 1)),
                *(row.tokens_in, row.tokens_cached, row.tokens_out, row.tokens_reasoning, engine_us),
                *(row.input_nano_usd, row.output_nano_usd, row.overhead_nano_usd),
            )
            for place, amount in enumerate(amounts):
                found[place] += amount
        return {key: tuple(values) for key, values in sums.items()}
