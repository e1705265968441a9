"""Counter for degraded requests."""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.events import PolicyChanged, TimerFired
from headgate.model.caps import Caps
from headgate.model.policy import Policy, Pool, ServiceClass
from headgate.telemetry.meters import Meters

WHOLE = Dispatch("r", 1, "small/a", "small", "chat", 0, 1, 1, 1, Caps(), "")


def degraded(*sent: Dispatch) -> int:
    meters = Meters()
    meters.observe(PolicyChanged(Policy(classes=(ServiceClass("chat", 0),), pools=(Pool("small"),)), "h"), [], now=0)
    meters.observe(TimerFired(), list(sent), now=1)
    return meters.classes["chat"].degraded


def test_unchanged_request_is_not_counted_as_degraded() -> None:
    assert degraded(WHOLE) == 0


def test_request_sent_at_a_level_or_to_another_model_is_counted_once_as_degraded() -> None:
    at_level, elsewhere = replace(WHOLE, level=2), replace(WHOLE, model="smaller")

    assert degraded(at_level, elsewhere, replace(at_level, attempt=2), replace(at_level, hedge=True)) == 2
