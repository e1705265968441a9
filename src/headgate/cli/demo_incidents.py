"""What goes wrong in the demo, on purpose?

Each incident begins after a while in which all is well, for as long as it takes a gateway to know what is usual. What
happens then is done from outside, as in life: by other traffic, or to an engine. `told` is what the console should say
within half a minute.
"""

from dataclasses import dataclass, field
from typing import Final

from headgate.core.diagnosis.picture import USUAL_SECONDS_MIN
from headgate.core.diagnosis.seconds_seen import FIRST_SECONDS, LATE_SECONDS

HEALTHY_S: Final = LATE_SECONDS + FIRST_SECONDS + USUAL_SECONDS_MIN + 15.0
"""What is usual is known after so long, also on a busy machine, where callers take some seconds to start. Before, a
verdict could name a cause but no pattern."""
PROFILE: Final = "h100x8-llama-70b"
"""Slow enough that a laptop can play all its parts."""
IN_FLIGHT_MAX: Final = 32
RATE: Final = 5.0
"""Requests a second while all is well: a quarter of what three engines can do."""
TENANTS: Final = ("acme", "bolt", "cora", "nightly")

_USUAL_SIZES: Final = "prompt=300:1400,output=60:140"
USUAL: Final = (
    f"class=interactive,tenant=acme,key=env:KEY_ACME,share=0.3,{_USUAL_SIZES}",
    f"class=interactive,tenant=bolt,key=env:KEY_BOLT,share=0.25,{_USUAL_SIZES}",
    f"class=interactive,tenant=cora,key=env:KEY_CORA,share=0.25,{_USUAL_SIZES}",
    f"class=batch,tenant=nightly,key=env:KEY_NIGHTLY,share=0.2,{_USUAL_SIZES}",
)
"""Who asks how often for what, as `headgate loadtest` takes it."""


def _of_all(sizes: str) -> tuple[str, ...]:
    """The same of everybody."""
    return tuple(f"class=interactive,tenant={each},key=env:KEY_{each.upper()},share=1,{sizes}" for each in TENANTS[:3])


@dataclass(frozen=True, slots=True)
class Incident:
    begins: str
    """What happens, in a line for whoever watches."""
    told: str
    """The cause that the verdict should name."""
    pattern: str
    """By which it should be recognised."""
    rate: float = 0.0
    """Requests a second that come in addition; none where nothing does."""
    mix: tuple[str, ...] = ()
    instead: bool = False
    """Whether these come instead of the usual ones."""
    manners: tuple[str, ...] = field(default=("--patience", "30"))
    """How those callers behave, as `headgate loadtest` takes it."""
    hangs: str = ""
    """The engine that stops in the middle of its work."""
    cold_start_s: float = 0.0
    """Endpoints are started by the gateway as it needs them, and each takes so long."""


INCIDENTS: Final = {
    "long-prompts": Incident(
        begins="everybody sends prompts of 4,000 to 7,000 tokens, eight times as long as usual",
        told="compute",
        pattern="long_prompts",
        rate=9.0,
        mix=_of_all("prompt=4000:7000,output=60:140"),
    ),
    "noisy-tenant": Incident(
        begins="tenant bolt asks for thirty times as much as it did",
        told="client",
        pattern="noisy_tenant",
        rate=35.0,
        mix=(f"class=interactive,tenant=bolt,key=env:KEY_BOLT,share=1,{_USUAL_SIZES}",),
    ),
    "engine-hang": Incident(
        begins="engine-2 stops in the middle of its work: it neither answers nor ends",
        told="upstream",
        pattern="engine_hang",
        hangs="engine-2",
    ),
    "retry-storm": Incident(
        begins="a proxy before the callers has a timeout of 30 ms instead of 30 s, and asks everything again and again",
        told="client",
        pattern="retry_storm",
        rate=RATE,
        mix=USUAL,
        instead=True,
        manners=("--ask-again", "0.03", "--retries", "12"),
    ),
    "launch": Incident(
        begins="six times as many callers come at once, and new engines take half a minute to start",
        told="configuration",
        pattern="cold_start",
        rate=25.0,
        mix=_of_all(_USUAL_SIZES),
        cold_start_s=30.0,
    ),
}
