"""What a pattern finds, what counts as harm, and how evidence is formatted."""

from dataclasses import dataclass
from typing import Final

from headgate.core.diagnosis.pool_observation import PoolObservation, mean
from headgate.core.diagnosis.window_counts import RECENT_SECONDS
from headgate.model.units import ClassName, Duration, TenantId, format_seconds
from headgate.model.verdict import Incident

HARM_PERMILLE: Final = 40
HARM_COUNT: Final = 3
"""Minimum number of harmed requests, and their minimum share per thousand requests with a known result."""
AFFECTED_PERMILLE: Final = 10


@dataclass(frozen=True, slots=True)
class IncidentFinding:
    incident: Incident
    sentence: str
    evidence: tuple[str, ...]
    action: str
    tenant: TenantId | None = None
    service_class: ClassName | None = None
    partial: bool = False
    """Whether pool findings are still reported. Used only for findings about the gateway."""


def callers_harmed(picture: PoolObservation) -> bool:
    return picture.recent.bad >= harm_threshold(picture)


def harm_threshold(picture: PoolObservation) -> int:
    """Returns the minimum number of harmed requests that counts as harm."""
    return max(HARM_COUNT, -(-HARM_PERMILLE * picture.recent.resolved // 1_000))


def callers_affected(picture: PoolObservation) -> bool:
    """Returns whether several requests are harmed, even if they are a small share.

    Used for problems observed directly.
    """
    late = picture.recent
    return late.bad >= HARM_COUNT and late.bad * 1_000 >= AFFECTED_PERMILLE * late.resolved


def is_harm_clear(picture: PoolObservation) -> bool:
    """Returns whether harm can be reported: there is a baseline, or the number of harmed requests is high enough."""
    return picture.has_baseline or picture.recent.bad * 5 >= picture.recent.resolved


def after_outage(picture: PoolObservation) -> bool:
    """Returns whether most harmed requests had no endpoint but would have one now.

    Such requests are no evidence against engines that have recovered.
    """
    return 0 < picture.recent.bad <= 2 * picture.recent.missing and not picture.last_seconds.missing


# Evidence, with the usual values


def counted(count: int, one: str, many: str | None = None) -> str:
    """Returns the count with its noun. The plural is the singular with an `s` unless `many` is given."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def arrivals_evidence(picture: PoolObservation) -> str:
    usual = picture.baseline_count(picture.baseline.arrivals)
    return f"{counted(picture.recent.arrivals, 'request')} in {RECENT_SECONDS} s, usually {usual}"


def prompts_evidence(picture: PoolObservation) -> str:
    late, usual = picture.recent, picture.baseline
    now, before = mean(late.prompt_tokens, late.arrivals), mean(usual.prompt_tokens, usual.arrivals)
    return f"{counted(now, 'token')} per prompt, usually {before}"


def prefill_evidence(picture: PoolObservation) -> str:
    late, usual = picture.recent, picture.baseline
    now, before = mean(late.prefill_ns, late.begun), mean(usual.prefill_ns, usual.begun)
    return (
        f"{format_seconds(Duration(now))} from sending to the first token, usually {format_seconds(Duration(before))}"
    )


def kv_evidence(picture: PoolObservation) -> str:
    told = [each.stats.kv_percent for each in picture.serving if each.stats.kv_percent is not None]
    return f"{min(told)} to {max(told)}% in use" if told else "not reported"


def engine_queue_evidence(picture: PoolObservation) -> str:
    return f"{counted(sum(each.stats.waiting for each in picture.serving), 'request')} queued in engines"


def missing_evidence(picture: PoolObservation) -> str:
    return f"{counted(picture.recent.missing, 'request')} had no endpoint in the last {RECENT_SECONDS} s"


def failures_evidence(picture: PoolObservation) -> str:
    late, usual = picture.recent, picture.baseline
    return (
        f"{counted(late.attempts_failed + late.attempts_stalled, 'attempt')} failed in {RECENT_SECONDS} s, usually "
        f"{picture.baseline_count(usual.attempts_failed + usual.attempts_stalled)}"
    )


def format_usd(nano: int) -> str:
    return f"${nano / 1_000_000_000:.2g}"
