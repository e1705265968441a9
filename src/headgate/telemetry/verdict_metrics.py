"""Current verdicts as metrics and as JSON.

The gateway and every diagnosed pool have one sample per cause and one per incident: 1 for the current value, 0 for all
others. An alert can therefore select one value, and it resolves when the value changes. A pool without a diagnosis has
no samples, because its health is unknown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.units import SECOND, Instant, PoolName
from headgate.model.verdict import Cause, Incident, Verdict
from headgate.telemetry.exposition import MetricFamily, family

GATEWAY_POOL: Final = "gateway"
"""Pool label of verdicts that concern the gateway as a whole."""


@dataclass(frozen=True, slots=True)
class CurrentVerdict:
    """Current cause and incident of one pool, or of the whole gateway if `pool` is None."""

    pool: PoolName | None
    cause: Cause
    incident: Incident


def verdict_metrics(pools: Sequence[str], current: Sequence[CurrentVerdict]) -> Iterator[MetricFamily]:
    found = {each.pool: each for each in current}
    causes, incidents = family("headgate_verdict"), family("headgate_incident")
    found.setdefault(None, CurrentVerdict(None, Cause.HEALTHY, Incident.HEALTHY))
    for name, key in ((GATEWAY_POOL, None), *((pool, PoolName(pool)) for pool in pools)):
        verdict = found.get(key)
        if verdict is None:
            continue
        for cause in Cause:
            causes.add((name, cause.value), float(cause is verdict.cause))
        for incident in Incident:
            incidents.add((name, incident.value), float(incident is verdict.incident))
    return iter((causes, incidents))


def verdict_row(verdict: Verdict, now: Instant) -> dict[str, object]:
    """A verdict in the form read by the console and `headgate doctor --live`."""
    return {
        "pool": verdict.pool,
        "cause": verdict.cause.value,
        "incident": verdict.incident.value,
        "since_s": max(0, (now - verdict.since) // SECOND),
        "sentence": verdict.summary,
        "evidence": verdict.evidence,
        "affected": [
            {"class": each.service_class, "tenant": each.tenant, "effect": each.effect} for each in verdict.affected
        ],
        "action": verdict.action,
        "runbook": f"docs/operations/runbooks/{verdict.incident.value}.md",
    }
