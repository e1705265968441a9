"""Incidents that the demo can inject.

Each incident starts after a healthy period that is long enough for the gateway to learn its usual load. Each has an
external cause: additional traffic, or a signal sent to an engine. The console should show the `expected_cause` within
half a minute.
"""

from dataclasses import dataclass, field
from typing import Final

from headgate.core.diagnosis.pool_observation import USUAL_SECONDS_MIN
from headgate.core.diagnosis.window_counts import RECENT_SECONDS, SKIPPED_SECONDS

HEALTHY_S: Final = RECENT_SECONDS + SKIPPED_SECONDS + USUAL_SECONDS_MIN + 15.0
"""Healthy period after which the gateway has learned its baseline load, even on a busy machine where clients take a few
seconds to start. Before that, a verdict can identify a cause but no pattern.
"""
PROFILE: Final = "h100x8-llama-70b"
"""Engine profile, slow enough that a laptop can simulate all the engines."""
IN_FLIGHT_MAX: Final = 32
RATE: Final = 5.0
"""Request rate in the healthy period: a quarter of three engines' capacity."""
TENANTS: Final = ("acme", "bolt", "cora", "nightly")

_NORMAL_SIZES: Final = "prompt=300:1400,output=60:140"
NORMAL_TRAFFIC: Final = (
    f"class=interactive,tenant=acme,key=env:KEY_ACME,share=0.3,{_NORMAL_SIZES}",
    f"class=interactive,tenant=bolt,key=env:KEY_BOLT,share=0.25,{_NORMAL_SIZES}",
    f"class=interactive,tenant=cora,key=env:KEY_CORA,share=0.25,{_NORMAL_SIZES}",
    f"class=batch,tenant=nightly,key=env:KEY_NIGHTLY,share=0.2,{_NORMAL_SIZES}",
)
"""`--mix` options of `headgate loadtest`."""


def _all_tenants_mix(sizes: str) -> tuple[str, ...]:
    """One `--mix` option per interactive tenant, with equal shares."""
    return tuple(f"class=interactive,tenant={each},key=env:KEY_{each.upper()},share=1,{sizes}" for each in TENANTS[:3])


@dataclass(frozen=True, slots=True)
class DemoIncident:
    description: str
    """One-line description of the incident."""
    expected_cause: str
    """Cause that the verdict should show."""
    expected_pattern: str
    """Pattern that the verdict should show."""
    rate: float = 0.0
    """Additional requests per second; 0 for none."""
    mix: tuple[str, ...] = ()
    replaces_traffic: bool = False
    """Whether this traffic replaces the normal traffic."""
    client_options: tuple[str, ...] = field(default=("--client-timeout", "30"))
    """Client behaviour options of `headgate loadtest`."""
    hung_engine: str = ""
    """Name of the engine that hangs."""
    cold_start_s: float = 0.0
    """Cold start duration of endpoints started by the gateway; 0 for static endpoints."""


INCIDENTS: Final = {
    "long-prompts": DemoIncident(
        description="all tenants send prompts of 4,000 to 7,000 tokens, eight times the usual length",
        expected_cause="compute",
        expected_pattern="long_prompts",
        rate=9.0,
        mix=_all_tenants_mix("prompt=4000:7000,output=60:140"),
    ),
    "noisy-tenant": DemoIncident(
        description="tenant bolt sends thirty times its usual traffic",
        expected_cause="client",
        expected_pattern="noisy_tenant",
        rate=35.0,
        mix=(f"class=interactive,tenant=bolt,key=env:KEY_BOLT,share=1,{_NORMAL_SIZES}",),
    ),
    "engine-hang": DemoIncident(
        description="engine-2 hangs: it neither responds nor exits",
        expected_cause="upstream",
        expected_pattern="engine_hang",
        hung_engine="engine-2",
    ),
    "retry-storm": DemoIncident(
        description="a client-side proxy has a timeout of 30 ms instead of 30 s and retries every request",
        expected_cause="client",
        expected_pattern="retry_storm",
        rate=RATE,
        mix=NORMAL_TRAFFIC,
        replaces_traffic=True,
        client_options=("--hedge-after", "0.03", "--retries", "12"),
    ),
    "launch": DemoIncident(
        description="traffic suddenly rises sixfold, and new engines take half a minute to start",
        expected_cause="configuration",
        expected_pattern="cold_start",
        rate=25.0,
        mix=_all_tenants_mix(_NORMAL_SIZES),
        cold_start_s=30.0,
    ),
}
