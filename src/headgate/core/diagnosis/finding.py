"""What is a finding made of: what it says, whether anybody is harmed, and the facts it goes by?"""

from dataclasses import dataclass
from typing import Final

from headgate.core.diagnosis.picture import Picture, mean
from headgate.core.diagnosis.seconds_seen import LATE_SECONDS
from headgate.model.units import ClassName, Duration, TenantId, seconds
from headgate.model.verdict import Incident

HARM_PERMILLE: Final = 40
HARM_COUNT: Final = 3
"""So many of those whose fate is known, and so many in a thousand, make harm."""
FELT_PERMILLE: Final = 10


@dataclass(frozen=True, slots=True)
class Found:
    incident: Incident
    sentence: str
    evidence: tuple[str, ...]
    action: str
    tenant: TenantId | None = None
    service_class: ClassName | None = None
    partial: bool = False
    """For a finding about the gateway: whether findings about pools are reported as well."""


def harmed(picture: Picture) -> bool:
    late = picture.late
    return late.bad >= HARM_COUNT and late.bad * 1_000 >= HARM_PERMILLE * max(1, late.resolved)


def felt(picture: Picture) -> bool:
    """Whether several suffer, though they may be few of many: enough where what is wrong is seen directly."""
    late = picture.late
    return late.bad >= HARM_COUNT and late.bad * 1_000 >= FELT_PERMILLE * late.resolved


def plain(picture: Picture) -> bool:
    """Whether harm can be told of: what is usual is known, or so many are harmed that it need not be."""
    return picture.known or picture.late.bad * 5 >= picture.late.resolved


def after_outage(picture: Picture) -> bool:
    """Whether most harmed requests found no endpoint a moment ago: no evidence about engines that are back."""
    return 0 < picture.late.bad <= 2 * picture.late.missing and not picture.latest.missing


# Facts, each with what is usual


def arrivals(picture: Picture) -> str:
    return f"{picture.late.arrivals} requests in {LATE_SECONDS} s, usually {picture.usually(picture.usual.arrivals)}"


def prompts(picture: Picture) -> str:
    late, usual = picture.late, picture.usual
    now, before = mean(late.prompt_tokens, late.arrivals), mean(usual.prompt_tokens, usual.arrivals)
    return f"{now} tokens per prompt, usually {before}"


def prefill(picture: Picture) -> str:
    late, usual = picture.late, picture.usual
    now, before = mean(late.prefill_ns, late.begun), mean(usual.prefill_ns, usual.begun)
    return f"{seconds(Duration(now))} from sending to the first token, usually {seconds(Duration(before))}"


def kv(picture: Picture) -> str:
    told = [each.seen.kv_percent for each in picture.serving if each.seen.kv_percent is not None]
    return f"{min(told)} to {max(told)}% in use" if told else "not told"


def engine_waiting(picture: Picture) -> int:
    return sum(each.seen.waiting for each in picture.serving)


def attempts_failed(picture: Picture) -> str:
    late, usual = picture.late, picture.usual
    return (
        f"{late.attempts_failed + late.attempts_stalled} attempts failed in {LATE_SECONDS} s, usually "
        f"{picture.usually(usual.attempts_failed + usual.attempts_stalled)}"
    )


def usd(nano: int) -> str:
    return f"${nano / 1_000_000_000:.2g}"
