"""How many endpoints may a pool have, and what decides between the bounds?"""

from dataclasses import dataclass

from headgate.model.units import SECOND, Duration, Instant


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """A launch or the like: so many endpoints are wanted from its beginning to its end, whatever was forecast."""

    name: str
    begins_at: Instant
    ends_at: Instant
    endpoints_min: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Of one pool."""

    endpoints_min: int = 1
    """0 only where requests may wait for an endpoint to start."""
    endpoints_max: int = 1
    warm_min: int = 1
    """So many are kept whatever the demand, unless it has been nothing for `idle_ns`."""
    load_percent: int = 100
    """Of what an endpoint can do, so much is given to it on the mean; room for bursts is the forecast's headroom."""
    kv_percent: int = 85
    """Of its KV cache, so much may be in use."""
    period_ns: Duration = Duration(10 * SECOND)
    cold_start_ns: Duration = Duration(120 * SECOND)
    """From the order to the first answer, as long as nothing has been measured."""
    settle_ns: Duration = Duration(300 * SECOND)
    """Only what was not needed for so long, and for twice the lead, is given back."""
    step_percent: int = 10
    """At most so much of the pool is given back in one step, and at least one endpoint."""
    panic_percent: int = 130
    """Demand above so much of what those can do that are ready is met at once, and nothing is given back meanwhile."""
    idle_ns: Duration = Duration(1_800 * SECOND)
    """After so long without any demand a pool whose `endpoints_min` is 0 is given up altogether."""
    hold_max: int = 100
    """So many requests may wait for the first endpoint of a pool that has none."""
    hourly_microdollars: int = 0
    """What an endpoint costs an hour; with a budget it bounds how many there may be."""
    budget_microdollars: int | None = None
    """What all endpoints of the pool may cost an hour."""
    calendar: tuple[KnownEvent, ...] = ()
    objective_ppm: int = 990_000
    """Share of the requests that should meet their target for the first token, in millionths."""
    correction_percent_min: int = 60
    correction_percent_max: int = 200
    """Bounds of the factor by which the measured attainment corrects the predicted work; both 100 turn it off."""

    @property
    def affordable(self) -> int | None:
        """How many endpoints the budget pays for; None where it does not bound them."""
        if self.budget_microdollars is None or not self.hourly_microdollars:
            return None
        return self.budget_microdollars // self.hourly_microdollars
