"""Measure how long a scheduling decision takes while many LoRA adapters wait for a slot.

    python -m bench.adapter_speed

Ten endpoints have room, but both adapter slots of each are in use. Each event is the end of a request whose adapter
keeps its slot, because it has other requests in flight. Every waiting adapter is therefore still blocked afterwards.

The last line is JSON: microseconds of CPU time per event, by number of waiting adapters.
"""

import json
from dataclasses import replace
from random import Random
from time import process_time

from bench.cli import print_progress
from bench.scheduler_workload import POOL, workload_endpoints, workload_policy, workload_ticket
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointReady,
    PolicyChanged,
    RequestArrived,
)
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Model
from headgate.model.units import MILLISECOND, Instant, ModelName, RequestId

WAITING = (0, 10, 50, 400)
ENDPOINTS, SLOTS = 10, 2
IN_FLIGHT = 20
"""Requests in flight of each adapter that has a slot."""
RUNS = 5


def cpu_us_per_event(waiting: int) -> float:
    """Returns the mean CPU time of the events while this many adapters wait."""
    busy = ENDPOINTS * SLOTS
    names = [ModelName(f"adapter-{number}") for number in range(busy + waiting)]
    policy = workload_policy(1, kv_tokens=100_000_000)
    policy = replace(
        policy,
        models=tuple(Model(name, (POOL,), adapter=name) for name in names),
        pools=(replace(policy.pools[0], max_lora=SLOTS),),
    )
    scheduler, chance, now = Scheduler(), Random(1), Instant(0)
    scheduler.handle(PolicyChanged(policy, "bench"), now)
    for number, endpoint in enumerate(workload_endpoints(ENDPOINTS, places=10 * SLOTS * IN_FLIGHT)):
        held = tuple(names[number * SLOTS : (number + 1) * SLOTS] + names[busy:])
        scheduler.handle(EndpointJoined(replace(endpoint, adapters=held)), now)
        scheduler.handle(EndpointReady(endpoint.id), now)
    running: list[RequestId] = []
    for name in names[:busy] * IN_FLIGHT + names[busy:]:
        ticket = replace(
            workload_ticket(f"r{len(running)}-{name}", 0, 1, chance), model=name, prompt_bytes=4, prefix_hashes=b""
        )
        scheduler.handle(RequestArrived(ticket), now)
        if len(running) < busy * IN_FLIGHT:
            running.append(ticket.request_id)
    ended = running[: busy * (IN_FLIGHT - 1)]
    began = process_time()
    for name in ended:
        # Within a turn, so that no adapter has to make way.
        scheduler.handle(AttemptEnded(name, 1, AttemptEnding.COMPLETED), Instant(MILLISECOND))
    took = process_time() - began
    found = scheduler.summary()
    assert sum(found.queued.values()) == waiting, "a waiting adapter was dispatched"
    assert sum(each.in_flight for each in found.endpoints) == busy, "a request was not dispatched at once"
    return 1e6 * took / len(ended)


def main() -> None:
    times = {waiting: round(min(cpu_us_per_event(waiting) for _ in range(RUNS)), 1) for waiting in WAITING}
    for waiting, us in times.items():
        print_progress(f"{waiting:4} waiting adapters: {us:6.1f} us per event")
    print(json.dumps({"us_per_event": times}))


if __name__ == "__main__":
    main()
