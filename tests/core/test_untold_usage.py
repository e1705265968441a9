"""Accounting for responses in which the engine reports no usage."""

from dataclasses import replace

from headgate.core.commands import Dispatch, End
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.tenant import Tenant
from headgate.model.units import TenantId
from testing.builders import a_policy, a_scheduler, arrived, at, commands_for, completed, failed

HEAVY = Tenant(TenantId("bolt"), weight=300)


def turns(scheduler: Scheduler, count: int) -> list[str]:
    """Returns the tenants of the next `count` requests, each of which ends without the engine reporting usage."""
    order: list[str] = []
    running = "first"
    for _ in range(count):
        [sent] = [each for each in commands_for(scheduler, at(1), completed(running)) if isinstance(each, Dispatch)]
        running = sent.request_id
        order.append(running[:4])
    return order


def test_tenant_weights_apply_without_reported_usage() -> None:
    scheduler = a_scheduler(policy=a_policy(tenants=("acme", HEAVY)))
    commands_for(scheduler, at(0), arrived("first", stream=False))
    for number in range(40):
        commands_for(scheduler, at(0), arrived(f"acme{number}", "acme"), arrived(f"bolt{number}", "bolt", stream=False))

    order = turns(scheduler, 40)

    assert 28 <= order.count("bolt") <= 32


def test_reserved_tokens_stay_charged_without_reported_usage() -> None:
    limited = Tenant(TenantId("acme"), limits=Limits(tokens_per_minute=400))
    scheduler = a_scheduler(policy=a_policy(tenants=(limited,)))
    commands_for(scheduler, at(0), arrived("r1"), completed("r1"), arrived("r2"), completed("r2"))

    [refused] = commands_for(scheduler, at(0), arrived("r3"))

    assert isinstance(refused, End)
    assert refused.outcome is Outcome.RATE_LIMITED


def test_attempt_failing_before_first_token_is_not_charged() -> None:
    limited = Tenant(TenantId("acme"), limits=Limits(tokens_per_minute=400))
    policy = a_policy(tenants=(limited,))
    scheduler = a_scheduler(policy=replace(policy, retry=replace(policy.retry, attempts_max=1)), places=9)
    for number in range(2):
        commands_for(scheduler, at(0), arrived(f"r{number}"), failed(f"r{number}"))

    assert [type(each) for each in commands_for(scheduler, at(0), arrived("r3"))] == [Dispatch]
