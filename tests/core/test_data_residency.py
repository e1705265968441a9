"""Requests whose data must stay local never go to a hosted provider, whatever would send them there."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, ModelTierRule, Overflow, Policy, Pool
from headgate.model.routes import ModelRoute
from headgate.model.tenant import DataResidency, Tenant
from headgate.model.units import ClassName, ModelName, PoolName, TenantId
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    duration,
    failed,
    policy_changed,
    unreadied,
)

OWN, CLOUD = PoolName("own"), PoolName("cloud")
LOCAL = DataResidency.LOCAL
LOCAL_TENANT = Tenant(TenantId("bank"), data_residency=LOCAL)
CHILD = Tenant(TenantId("bank/trading"))


def a_hosted_policy(*models: Model) -> Policy:
    """Tenant "acme" may use hosted providers. "bank" and the tenants below it may not."""
    return a_policy(tenants=("acme", LOCAL_TENANT, CHILD), pools=(Pool(OWN), Pool(CLOUD, hosted=True)), models=models)


def a_hosted_scheduler(*models: Model, own_places: int = 1) -> Scheduler:
    return a_scheduler(
        an_endpoint("e-own", pool="own", places=own_places),
        an_endpoint("e-cloud", pool="cloud", places=9),
        policy=a_hosted_policy(*models),
    )


def endpoints(commands: list[Command]) -> list[str]:
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


BOTH = Model(ModelName("m"), (OWN, CLOUD))
MIXED_MODELS = {
    "pools": BOTH,
    "tiers": replace(BOTH, tiers=(ModelTierRule((CLOUD, OWN)),)),
    "routes": Model(
        ModelName("m"), (OWN,), routes=(ModelRoute("out", (CLOUD,), weight=1_000_000), ModelRoute("in", (OWN,)))
    ),
    "overflow": Model(ModelName("m"), (OWN,), overflow=Overflow((CLOUD,), duration(0))),
}


@pytest.mark.parametrize("kind", MIXED_MODELS)
@pytest.mark.parametrize("tenant", ["bank", "bank/trading"])
def test_local_tenant_waits_for_own_endpoints_while_the_provider_is_free(kind: str, tenant: str) -> None:
    scheduler = a_hosted_scheduler(MIXED_MODELS[kind])

    sent = [endpoints(scheduler.handle(arrived(f"r{number}", tenant), at(number))) for number in range(5)]

    assert sent == [["e-own"], [], [], [], []]


@pytest.mark.parametrize("kind", MIXED_MODELS)
def test_other_tenants_reach_the_provider_with_the_same_models(kind: str) -> None:
    scheduler = a_hosted_scheduler(MIXED_MODELS[kind])

    sent = [each for number in range(5) for each in endpoints(scheduler.handle(arrived(f"r{number}"), at(number)))]

    assert "e-cloud" in sent


def test_local_tenant_gets_no_fallback_on_a_provider() -> None:
    models = (Model(ModelName("m"), (OWN,), fallbacks=(ModelName("n"),)), Model(ModelName("n"), (CLOUD,)))
    scheduler = a_hosted_scheduler(*models)
    commands_for(scheduler, at(0), unreadied("e-own"))

    assert endpoints(scheduler.handle(arrived("a"), at(1))) == ["e-cloud"]
    assert endpoints(scheduler.handle(arrived("b", "bank"), at(1))) == []


def test_retry_of_a_local_tenant_stays_local() -> None:
    scheduler = a_hosted_scheduler(BOTH, own_places=2)
    commands_for(scheduler, at(0), arrived("a", "bank"))

    assert endpoints(scheduler.handle(failed("a"), at(1))) == ["e-own"]


def test_class_with_local_data_stays_local_for_every_tenant() -> None:
    policy = replace(a_hosted_policy(BOTH), classes=(replace(INTERACTIVE, data_residency=LOCAL), BATCH))
    scheduler = a_scheduler(
        an_endpoint("e-own", pool="own"), an_endpoint("e-cloud", pool="cloud", places=9), policy=policy
    )

    local = [endpoints(scheduler.handle(arrived(f"r{number}"), at(0))) for number in range(3)]
    other = endpoints(scheduler.handle(arrived("b", service_class="batch"), at(0)))

    assert local == [["e-own"], [], []]
    assert other == ["e-cloud"]


def test_model_without_a_local_pool_is_rejected_with_the_reason() -> None:
    scheduler = a_hosted_scheduler(Model(ModelName("m"), (CLOUD,)))

    [end] = scheduler.handle(arrived("a", "bank"), at(0))

    assert isinstance(end, End)
    assert end.outcome is Outcome.FORBIDDEN
    assert "data_residency: local excludes hosted pools" in end.reason


def test_tenant_that_becomes_local_keeps_its_queued_requests_from_the_provider() -> None:
    scheduler = a_scheduler(
        an_endpoint("e-own", pool="own"), an_endpoint("e-cloud", pool="cloud"), policy=a_hosted_policy(BOTH)
    )
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"))
    assert scheduler.summary().queued[ClassName("interactive")] == 1
    local = replace(a_hosted_policy(BOTH), tenants=(Tenant(TenantId("acme"), data_residency=LOCAL), LOCAL_TENANT))
    commands_for(scheduler, at(1), policy_changed(local, "h2"))

    free_cloud = endpoints(scheduler.handle(failed("b", detail="x"), at(2)))

    assert "e-cloud" not in free_cloud
