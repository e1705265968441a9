"""Traffic for the scheduler benchmarks, standalone and in a cell.

There are many tenants, each with limits that it never reaches, so that all limits are checked. Prompts share a prefix
with others in their conversation. The class's queue has room for every request. Both benchmarks use this traffic, so
their results can be compared.
"""

from collections.abc import Iterator
from random import Random

from headgate.model.endpoint import Endpoint
from headgate.model.limits import Limits
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.prefix import pack_hashes
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import (
    MILLISECOND,
    MINUTE,
    ClassName,
    Duration,
    EndpointId,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
)

TENANTS = 1_000
ENDPOINTS = 64
HASHES = 16
POOL = PoolName("main")
MODEL = ModelName("m")


def workload_policy(tenants: int, *, kv_tokens: int, requests_per_minute: int = 1_000_000) -> Policy:
    limits = Limits(requests_per_minute, tokens_per_minute=1_000 * requests_per_minute, concurrency=1_000_000)
    return Policy(
        classes=(
            ServiceClass(
                ClassName("interactive"),
                0,
                queue_wait_ns_max=Duration(60 * MINUTE),
                queue_length_max=1_000_000,
                queue_length_per_tenant_max=1_000_000,
                ttft_ns=Duration(60 * MINUTE),
                tpot_ns=Duration(100 * MILLISECOND),
            ),
        ),
        tenants=tuple(Tenant(TenantId(f"org-{number}"), limits=limits) for number in range(tenants)),
        pools=(Pool(POOL, kv_tokens=kv_tokens),),
        models=(Model(MODEL, (POOL,)),),
    )


def workload_endpoints(count: int, places: int) -> Iterator[Endpoint]:
    for number in range(count):
        yield Endpoint(EndpointId(f"main/{number}"), POOL, places)


def workload_ticket(name: str, number: int, tenants: int, chance: Random) -> Ticket:
    conversation = chance.randrange(2_000) << 8
    return Ticket(
        RequestId(name),
        Api.CHAT,
        MODEL,
        TenantId(f"org-{chance.randrange(tenants)}"),
        stream=True,
        prompt_bytes=chance.randrange(400, 2_400),
        # Half of the prefix is shared with the conversation's other requests.
        prefix_hashes=pack_hashes(
            [conversation + each if each < HASHES // 2 else number << 8 | each for each in range(HASHES)]
        ),
    )
