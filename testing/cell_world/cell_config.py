"""Configuration of one simulated cell: members, endpoints and policy."""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from headgate.model.endpoint import Endpoint
from headgate.model.limits import Limits
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
)
from testing.cell_world.engines import Engine

QUEUE_WAIT_NS: Final = {"interactive": Duration(4 * SECOND), "batch": Duration(6 * SECOND)}
LIMITED: Final = TenantId("bounded")
LIMIT: Final = 30
"""Rate limit for the tenant `LIMITED`, in requests per minute."""
OUTPUT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfig:
    names: list[str]
    gateways: list[str]
    """Members that serve clients."""
    candidates: list[str]
    engines: dict[EndpointId, Engine]
    policy: Policy
    next_policy: Policy
    label: str = ""
    """Prefix of the policy hashes, different for each configuration file."""
    model: ModelName
    tenants: tuple[TenantId, ...]
    """Tenants that send requests. A tenant listed twice is drawn twice as often."""

    def hash_of(self, policy: Policy) -> str:
        return self.label + ("second" if policy is self.next_policy else "first")

    @property
    def has_limit(self) -> bool:
        """Whether the configuration has the rate-limited tenant. A scheduler without that tenant has no counters for
        it.
        """
        return LIMITED in self.tenants


def draw_cell_config(random: Random) -> CellConfig:
    gateways = [f"g{number}" for number in range(random.choice((2, 3, 3, 4)))]
    names = [*gateways, *(["s0"] if random.random() < 0.4 else [])]
    candidates = names if random.random() < 0.3 else names[-2:]
    engines = [_engine(f"e{number}", random) for number in range(random.choice((1, 2, 3)))]
    policy = _policy(min(each.kv_tokens for each in engines))
    return CellConfig(
        names=names,
        gateways=gateways,
        candidates=candidates,
        engines={each.endpoint.id: each for each in engines},
        policy=policy,
        next_policy=replace(policy, tenants=(*policy.tenants, Tenant(TenantId("new")))),
        model=ModelName("m"),
        tenants=(LIMITED, TenantId("open"), TenantId("open")),
    )


def copied_config(site: CellConfig, names: list[str]) -> CellConfig:
    """A second cell with a copy of the configuration file."""
    return replace(site, names=names, gateways=names, candidates=names)


def foreign_config(names: list[str], random: Random) -> CellConfig:
    """A second cell with its own configuration file, endpoint, model and tenant."""
    engine = _engine("x0", random, pool="q")
    policy = replace(_policy(engine.kv_tokens, pool="q", model="n"), tenants=(Tenant(TenantId("other")),))
    return CellConfig(
        names=names,
        gateways=names,
        candidates=names,
        engines={engine.endpoint.id: engine},
        policy=policy,
        next_policy=policy,
        label="other ",
        model=ModelName("n"),
        tenants=(TenantId("other"),),
    )


def draw_ticket(request_id: RequestId, site: CellConfig, random: Random) -> Ticket:
    tenant = random.choice(site.tenants)
    tight = random.random() < 0.1
    return Ticket(
        request_id,
        Api.CHAT,
        site.model,
        tenant,
        stream=True,
        prompt_bytes=4 * random.randrange(20, 500),
        requested_class=random.choice(("interactive", "batch")),
        completion_ns_left=Duration(8 * SECOND) if tight else None,
        output_tokens_max=OUTPUT_TOKENS,
    )


def draw_client_timeout(random: Random) -> Duration | None:
    """Time after which a client disconnects. None for clients that stay connected, which is most of them."""
    return Duration(random.randrange(50, 3_000) * MILLISECOND) if random.random() < 0.07 else None


def _engine(name: str, random: Random, pool: str = "p") -> Engine:
    endpoint = Endpoint(EndpointId(name), PoolName(pool), random.choice((2, 3, 4, 6, 8)))
    return Engine(endpoint, kv_tokens=random.choice((1_500, 3_000, 100_000)))


def _policy(kv_tokens: int, *, pool: str = "p", model: str = "m") -> Policy:
    return Policy(
        classes=(
            ServiceClass(ClassName("interactive"), 0, queue_wait_ns_max=QUEUE_WAIT_NS["interactive"]),
            ServiceClass(ClassName("batch"), 1, queue_wait_ns_max=QUEUE_WAIT_NS["batch"]),
        ),
        tenants=(Tenant(TenantId("open")), Tenant(LIMITED, limits=Limits(requests_per_minute=LIMIT))),
        pools=(Pool(PoolName(pool), kv_tokens=kv_tokens),),
        models=(Model(ModelName(model), (PoolName(pool),)),),
    )
