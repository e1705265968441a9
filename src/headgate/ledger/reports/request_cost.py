"""Cost of one request, by attempt."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from headgate.ledger.connection import DatabaseRow
from headgate.ledger.reports.cost_breakdown import USEFUL_CAUSES
from headgate.model.money import NanoUsd, Payer
from headgate.model.units import SECOND, Instant
from headgate.ports.cost_reports import AttemptCost, RequestCost

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def request_cost(rows: Sequence[DatabaseRow]) -> RequestCost:
    """Cost of a request, computed from all its rows in order. Corrections are stored as differences, so they can be
    summed along with the other rows.
    """
    attempts = [_attempt(row) for row in rows]
    kept = [each for each in attempts if each.cause in USEFUL_CAUSES]
    in_vain = [each for each in attempts if each.cause not in USEFUL_CAUSES]
    first, last = rows[0], rows[-1]
    return RequestCost(
        request=first["request"],
        at=_to_instant(first["at"]),
        tenant=first["tenant"],
        service_class=first["class"],
        model=first["model"],
        outcome=last["outcome"],
        metadata=_metadata(first["metadata"]),
        attempts=attempts,
        reserved_nano_usd=NanoUsd(sum(row["reserved_nano_usd"] for row in rows)),
        input_nano_usd=NanoUsd(sum(each.input_nano_usd for each in kept)),
        output_nano_usd=NanoUsd(sum(each.output_nano_usd for each in kept)),
        overhead_nano_usd=NanoUsd(sum(each.overhead_nano_usd for each in kept)),
        retries_nano_usd=NanoUsd(sum(each.cost_nano_usd for each in in_vain)),
        cost_nano_usd=NanoUsd(sum(each.cost_nano_usd for each in attempts)),
        charged_nano_usd=NanoUsd(sum(each.cost_nano_usd for each in attempts if each.payer == Payer.TENANT)),
    )


def _attempt(row: DatabaseRow) -> AttemptCost:
    named: dict[str, Any] = {
        name: row[name]
        for name in (
            *("attempt", "correction", "pool", "endpoint", "ending", "cause", "payer", "usage_source"),
            *("tokens_in", "tokens_cached", "tokens_out", "tokens_reasoning", "queue_us", "ttft_us", "duration_us"),
            *("input_nano_usd", "output_nano_usd", "overhead_nano_usd"),
        )
    }
    return AttemptCost(
        at=_to_instant(row["at"]),
        engine_us=row["input_us"] + row["output_us"] + row["overhead_us"],
        cost_nano_usd=NanoUsd(row["input_nano_usd"] + row["output_nano_usd"] + row["overhead_nano_usd"]),
        **named,
    )


def _metadata(text: str | None) -> Mapping[str, str]:
    return {} if text is None else json.loads(text)


def _to_instant(moment: datetime) -> Instant:
    since = moment - _EPOCH
    return Instant((since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000)
