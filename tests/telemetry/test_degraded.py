"""Which requests count as degraded?"""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.events import PolicyChanged, TimerFired
from headgate.model.caps import Caps
from headgate.model.policy import Policy, Pool, ServiceClass
from headgate.telemetry.meters import Meters

WHOLE = Dispatch("r", 1, "small/a", "small", "chat", 0, 1, 1, 1, Caps(), "")


def degraded(*sent: Dispatch) -> int:
    meters = Meters()
    meters.saw(PolicyChanged(Policy(classes=(ServiceClass("chat", 0),), pools=(Pool("small"),)), "h"), [], now=0)
    meters.saw(TimerFired(), list(sent), now=1)
    return meters.classes["chat"].degraded


def test_what_is_sent_as_it_was_asked_for_does_not() -> None:
    assert degraded(WHOLE) == 0


def test_what_is_sent_at_a_level_or_to_another_model_does_once() -> None:
    at_level, elsewhere = replace(WHOLE, level=2), replace(WHOLE, model="smaller")

    assert degraded(at_level, elsewhere, replace(at_level, attempt=2), replace(at_level, hedge=True)) == 2
