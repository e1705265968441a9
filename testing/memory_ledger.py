"""What would a ledger hold that forgets nothing and fails never? The twin of the real one, for tests."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from headgate.ports.ledger import EndpointTimeRow, UsageRow


class MemoryLedger:
    def __init__(self) -> None:
        self.rows: dict[tuple[int, str, int, int], UsageRow] = {}
        """By what names them; the first of a name counts."""
        self.times: dict[tuple[int, str, str], EndpointTimeRow] = {}

    def add(self, rows: Sequence[UsageRow]) -> None:
        for row in rows:
            # The database knows moments by the microsecond.
            self.rows.setdefault((row.at // 1_000, row.request, row.attempt, row.correction), row)

    def add_time(self, rows: Sequence[EndpointTimeRow]) -> None:
        for row in rows:
            self.times.setdefault((row.at // 1_000, row.endpoint, row.source), row)

    def days(self) -> dict[tuple[Any, ...], tuple[int, ...]]:
        """The sums of each day, as the reports ask for them."""
        sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * 10)
        for row in self.rows.values():
            unknown = ("invalid", "forbidden", "unauthorized", "unverified", "model_not_found")
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
