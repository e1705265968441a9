"""Builds the KEDA scaler on top of the autoscaler."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.config.settings import Address
from headgate.control.autoscaling import AutoscalingService
from headgate.core.summary import Summary
from headgate.model.units import PoolName

if TYPE_CHECKING:
    from headgate.fleets.keda.scaler import KedaScaler


async def start_scaler(listen: Address, scaling: AutoscalingService, summary: Callable[[], Summary]) -> "KedaScaler":
    """Starts the scaler. Raises `OSError` with the next step if it cannot be started."""
    try:
        from headgate.fleets.keda.scaler import DesiredEndpoints, KedaScaler
    except ImportError as error:
        raise OSError(0, f"scaler_listen: {error}") from error

    def wanted(pool: PoolName) -> DesiredEndpoints:
        rules = scaling.rules[pool]
        present = sum(each.pool == pool and not each.leaving for each in summary().endpoints)
        measured = any(each.pool == pool for each in scaling.figures)
        if not measured:
            # If demand has not been measured since startup, keep the current endpoint count.
            least = max(present, rules.endpoints_min, rules.warm_endpoints_min)
            return DesiredEndpoints(least, active=least > 0, reason="no measurement yet", present=present)
        endpoints = scaling.desired()[pool]
        reason = scaling.reasons.get(pool, "no change")
        return DesiredEndpoints(endpoints, active=endpoints > 0, reason=reason, present=present)

    scaler = KedaScaler(wanted, lambda: list(scaling.rules))
    await scaler.start(*listen)
    return scaler
