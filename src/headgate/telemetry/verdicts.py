"""How is it told to Prometheus, and to whoever asks, what is the matter?

Every pool of which something is known and the gateway as a whole are there with every cause and every pattern: 1 for
the present one, 0 for all others, so that an alert can name one and be over when it is. A pool that nobody has looked
at is not there: it is not known to be healthy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.units import SECOND, Instant, PoolName
from headgate.model.verdict import Cause, Incident, Verdict
from headgate.telemetry.page import Family, family

GATEWAY: Final = "gateway"
"""What is told of no pool in particular."""


@dataclass(frozen=True, slots=True)
class Present:
    """What is the matter with one pool at the moment, or with all where it is None."""

    pool: PoolName | None
    cause: Cause
    incident: Incident


def verdict_metrics(pools: Sequence[str], present: Sequence[Present]) -> Iterator[Family]:
    found = {each.pool: each for each in present}
    causes, incidents = family("headgate_verdict"), family("headgate_incident")
    found.setdefault(None, Present(None, Cause.HEALTHY, Incident.HEALTHY))
    for name, key in ((GATEWAY, None), *((pool, PoolName(pool)) for pool in pools)):
        verdict = found.get(key)
        if verdict is None:
            continue
        for cause in Cause:
            causes.add((name, cause.value), float(cause is verdict.cause))
        for incident in Incident:
            incidents.add((name, incident.value), float(incident is verdict.incident))
    return iter((causes, incidents))


def verdict_row(verdict: Verdict, now: Instant) -> dict[str, object]:
    """As the console and `headgate doctor --live` read it."""
    return {
        "pool": verdict.pool,
        "cause": verdict.cause.value,
        "incident": verdict.incident.value,
        "since_s": max(0, (now - verdict.since) // SECOND),
        "sentence": verdict.sentence,
        "evidence": verdict.evidence,
        "affected": [
            {"class": each.service_class, "tenant": each.tenant, "how": each.how} for each in verdict.affected
        ],
        "action": verdict.action,
        "runbook": f"docs/operations/runbooks/{verdict.incident.value}.md",
    }
