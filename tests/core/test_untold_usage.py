"""What does an answer count for, of which no engine says how long it was?"""

from dataclasses import replace

from headgate.core.commands import Dispatch, End
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.tenant import Tenant
from headgate.model.units import TenantId
from testing.builders import a_policy, a_scheduler, arrived, at, completed, failed, told

HEAVY = Tenant(TenantId("bolt"), weight=300)


def turns(scheduler: Scheduler, count: int) -> list[str]:
    """Whose requests go, one after another, as each ends without a word about its length."""
    order: list[str] = []
    running = "first"
    for _ in range(count):
        [sent] = [each for each in told(scheduler, at(1), completed(running)) if isinstance(each, Dispatch)]
        running = sent.request_id
        order.append(running[:4])
    return order


def test_weights_hold_among_tenants_whose_engines_do_not_count() -> None:
    scheduler = a_scheduler(policy=a_policy(tenants=("acme", HEAVY)))
    told(scheduler, at(0), arrived("first", stream=False))
    for number in range(40):
        told(scheduler, at(0), arrived(f"acme{number}", "acme"), arrived(f"bolt{number}", "bolt", stream=False))

    order = turns(scheduler, 40)

    assert 28 <= order.count("bolt") <= 32


def test_what_was_reserved_of_a_rate_stays_used() -> None:
    limited = Tenant(TenantId("acme"), limits=Limits(tokens_per_minute=400))
    scheduler = a_scheduler(policy=a_policy(tenants=(limited,)))
    told(scheduler, at(0), arrived("r1"), completed("r1"), arrived("r2"), completed("r2"))

    [refused] = told(scheduler, at(0), arrived("r3"))

    assert isinstance(refused, End)
    assert refused.outcome is Outcome.RATE_LIMITED


def test_what_failed_before_its_first_token_costs_nothing() -> None:
    limited = Tenant(TenantId("acme"), limits=Limits(tokens_per_minute=400))
    policy = a_policy(tenants=(limited,))
    scheduler = a_scheduler(policy=replace(policy, retry=replace(policy.retry, attempts_max=1)), places=9)
    for number in range(2):
        told(scheduler, at(0), arrived(f"r{number}"), failed(f"r{number}"))

    assert [type(each) for each in told(scheduler, at(0), arrived("r3"))] == [Dispatch]
