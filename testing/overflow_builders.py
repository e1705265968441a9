"""A model with one own slot and a hosted provider as its overflow."""

from headgate.core.commands import Command, Dispatch
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.money import NanoUsd, Price
from headgate.model.policy import Model, Overflow, Policy, Pool
from headgate.model.tenant import Tenant
from headgate.model.units import ClassName, Instant, ModelName, PoolName
from testing.builders import a_policy, a_scheduler, an_endpoint, at, duration

OWN, CLOUD = PoolName("own"), PoolName("cloud")
DOLLAR = 1_000_000_000
PRICE = Price(Instant(0), input_per_1m_tokens=NanoUsd(DOLLAR), output_per_1m_tokens=NanoUsd(2 * DOLLAR))


def an_overflow_policy(
    after: float = 2, *, classes: tuple[str, ...] = (), tenants: tuple[str | Tenant, ...] = ("acme", "bolt")
) -> Policy:
    overflow = Overflow((CLOUD,), duration(after), tuple(ClassName(each) for each in classes))
    return a_policy(
        tenants=tenants,
        pools=(Pool(OWN), Pool(CLOUD, hosted=True, prices=(PRICE,))),
        models=(Model(ModelName("m"), (OWN,), overflow=overflow),),
    )


def an_overflow_scheduler(policy: Policy | None = None, *, cloud_places: int = 2) -> Scheduler:
    """One own slot, and some at the provider."""
    return a_scheduler(
        an_endpoint("e-own", pool="own"),
        an_endpoint("e-cloud", pool="cloud", places=cloud_places),
        policy=policy or an_overflow_policy(),
    )


def endpoints(commands: list[Command]) -> list[str]:
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def only_dispatch(commands: list[Command]) -> Dispatch:
    [command] = [each for each in commands if isinstance(each, Dispatch)]
    return command


def fire(scheduler: Scheduler, until: float) -> list[Command]:
    """Fires all timers that are due by then."""
    out: list[Command] = []
    while (due := scheduler.next_wakeup()) is not None and due <= at(until):
        out += scheduler.handle(TimerFired(), due)
    return out
