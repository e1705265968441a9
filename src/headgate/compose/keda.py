"""How does KEDA learn what the autoscaler wants?"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.config.settings import Address
from headgate.control.autoscaling import Scaling
from headgate.core.summary import Summary
from headgate.model.units import PoolName

if TYPE_CHECKING:
    from headgate.fleets.keda.scaler import KedaScaler


async def start_scaler(listen: Address, scaling: Scaling, summary: Callable[[], Summary]) -> "KedaScaler":
    """Answers KEDA from here on. Raises `OSError` where it cannot, with the next step."""
    try:
        from headgate.fleets.keda.scaler import KedaScaler, Wanted
    except ImportError as error:
        raise OSError(0, f"scaler_listen: {error}") from error

    def wanted(pool: PoolName) -> Wanted:
        rules = scaling.rules[pool]
        present = sum(each.pool == pool and not each.leaving for each in summary().endpoints)
        measured = any(each.pool == pool for each in scaling.figures)
        if not measured:
            # Whoever has just started knows nothing; what is there stays.
            least = max(present, rules.endpoints_min, rules.warm_min)
            return Wanted(least, active=least > 0, reason="nothing is measured yet", present=present)
        endpoints = scaling.wanted()[pool]
        reason = scaling.reasons.get(pool, "as it is")
        return Wanted(endpoints, active=endpoints > 0, reason=reason, present=present)

    scaler = KedaScaler(wanted, lambda: list(scaling.rules))
    await scaler.start(*listen)
    return scaler
