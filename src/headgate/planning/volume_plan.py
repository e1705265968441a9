"""Plan for a number of requests per day: cells, engines, gateways and what they write.

One cell is simulated at its real size, at the busiest time of the day and with headroom. The other cells are like it.
The processes of Headgate itself follow from measured costs (`measured.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.money import NANO_USD_PER_USD, price_at
from headgate.model.policy import Pool
from headgate.model.units import SECOND, ClassName, Duration, Instant, PoolName
from headgate.planning import measured
from headgate.planning.cases import Endpoints

DAY_S: Final = 86_400
HOURS: Final = 24
PROCESS_CORES: Final = 0.5
"""Planned load of a gateway process, so that bursts do not delay streams."""
DEDICATED_CORES: Final = 0.25
"""Scheduler load from which on a cell has scheduler-only processes."""
SCHEDULERS_PER_CELL: Final = 2
STORES_PER_CELL: Final = 2
"""Scheduler-only processes and stores of a cell: one in charge, and one to replace it."""
ENDPOINT_ROWS_PER_DAY: Final = 8_640


@dataclass(frozen=True, slots=True, kw_only=True)
class DayMix:
    """What is known about a day before it is scaled."""

    requests: float
    """Requests per day at the scenario's own rates."""
    peaks: tuple[Instant, ...]
    """Start of the part of the day with the most engine time, for each source of traffic or for all of them."""
    peak_ns: Duration
    """Length of this part: ten minutes, or the length of a shorter scenario."""
    peak_ratio: float
    """Highest request rate over such a part, relative to the mean of the day."""
    gateway_peak_us: float
    """Highest CPU time of the gateways over such a part, per request of the mean rate."""
    prompt_tokens: float
    output_tokens: float
    """Mean lengths over the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLoad:
    """One of the equal cells that share a volume."""

    cells: int
    requests_per_s: float
    """Rate in the busiest part of the day, with headroom."""
    traffic: float
    """Factor on the scenario's rates, with headroom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePlan:
    requests_per_day: int
    load: CellLoad
    endpoints: Endpoints
    """Endpoints of one cell."""
    attainment: Mapping[ClassName, float]
    simulated_requests: int
    window_ns: Duration
    engines: int
    gpus: int
    gpu_usd_per_day: float | None
    """None if a pool has no price."""
    gateways: int
    """Gateway processes in all cells."""
    gateway_cores: float
    """Cores that the gateways use at the peak."""
    schedulers: int
    """Scheduler-only processes in all cells."""
    scheduler_cores: float
    """Cores that the scheduler of one cell uses at the peak."""
    stores: int
    control_usd_per_day: float
    """Cost of one core for each process of Headgate and each store."""
    ledger_rows_per_day: int
    ledger_rows_per_s: float
    """Rows per second at the peak."""
    ledger_bytes_per_day: int
    record_bytes_per_day: int
    series: int

    @property
    def simulated_per_s(self) -> float:
        """Request rate of the simulated window."""
        return self.simulated_requests * SECOND / self.window_ns

    @property
    def gpu_usd_per_request(self) -> float | None:
        return None if self.gpu_usd_per_day is None else self.gpu_usd_per_day / self.requests_per_day

    @property
    def control_usd_per_request(self) -> float:
        return self.control_usd_per_day / self.requests_per_day

    @property
    def requests_per_gpu(self) -> float:
        return self.requests_per_day / self.gpus


def cell_load(mix: DayMix, requests_per_day: float, *, headroom: float, cell_requests_per_s: float) -> CellLoad:
    """Returns the fewest equal cells that are not overloaded at the peak."""
    needed = requests_per_day / DAY_S * mix.peak_ratio * (1 + headroom)
    cells = max(1, math.ceil(needed / cell_requests_per_s))
    traffic = requests_per_day / mix.requests * (1 + headroom) / cells
    return CellLoad(cells=cells, requests_per_s=needed / cells, traffic=traffic)


def gateway_request_us(output_tokens: int) -> float:
    """Returns the CPU time of a gateway for a stream of one chunk per token, with the ledger."""
    return (measured.REQUEST_US.value + output_tokens * measured.CHUNK_US.value) * measured.LEDGER_FACTOR.value


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCell:
    endpoints: Endpoints
    attainment: Mapping[ClassName, float]
    requests: int
    window_ns: Duration


def volume_plan(
    mix: DayMix,
    requests_per_day: int,
    load: CellLoad,
    cell: SimulatedCell,
    *,
    pools: Sequence[Pool],
    gpus: Mapping[PoolName, int],
    core_usd_per_hour: float,
) -> VolumePlan:
    engines = load.cells * sum(count for _, count in cell.endpoints)
    mean_per_s = load.requests_per_s / mix.peak_ratio
    cores = mean_per_s * mix.gateway_peak_us / 1_000_000
    # One more than the peak needs, because any of them may fail.
    gateways = load.cells * (max(1, math.ceil(cores / PROCESS_CORES)) + 1)
    scheduler = measured.scheduler_cores(load.requests_per_s) + measured.WATCH_CORES.value * (
        engines / load.cells / 1_000
    )
    schedulers = load.cells * SCHEDULERS_PER_CELL if scheduler > DEDICATED_CORES else 0
    processes, stores = gateways + schedulers, load.cells * STORES_PER_CELL
    rows = round(measured.ATTEMPTS_PER_REQUEST.value * requests_per_day)
    return VolumePlan(
        requests_per_day=requests_per_day,
        load=load,
        endpoints=cell.endpoints,
        attainment=cell.attainment,
        simulated_requests=cell.requests,
        window_ns=cell.window_ns,
        engines=engines,
        gpus=load.cells * sum(count * gpus.get(pool, 1) for pool, count in cell.endpoints),
        gpu_usd_per_day=_gpu_usd_per_day(load, cell.endpoints, pools),
        gateways=gateways,
        gateway_cores=load.cells * cores,
        schedulers=schedulers,
        scheduler_cores=scheduler,
        stores=stores,
        control_usd_per_day=(processes + stores) * HOURS * core_usd_per_hour,
        ledger_rows_per_day=rows + ENDPOINT_ROWS_PER_DAY * engines,
        ledger_rows_per_s=load.cells * load.requests_per_s * measured.ATTEMPTS_PER_REQUEST.value,
        ledger_bytes_per_day=round(rows * measured.LEDGER_ROW_BYTES.value),
        record_bytes_per_day=round(requests_per_day * measured.RECORD_BYTES.value),
        series=round(processes * measured.PROCESS_SERIES.value + engines * measured.ENDPOINT_SERIES.value),
    )


def _gpu_usd_per_day(load: CellLoad, endpoints: Endpoints, pools: Sequence[Pool]) -> float | None:
    """Returns None if a pool has no price, because the costs of the others would be misleading."""
    prices = {each.name: price_at(each.prices, Instant(0)) for each in pools}
    found = [(count, prices[pool]) for pool, count in endpoints]
    if any(price is None for _, price in found):
        return None
    per_hour = sum(count * price.per_hour for count, price in found if price is not None)
    return load.cells * HOURS * per_hour / NANO_USD_PER_USD


def growth_exponent(plans: Sequence[VolumePlan], values: Sequence[float | None]) -> float | None:
    """Returns b of value = a·requests^b over the volumes.

    None if a value is unknown or 0, or if there is a single volume.
    """
    known = [value for value in values if value is not None and value > 0]
    if len(plans) < 2 or len(known) < len(plans):
        return None
    return measured.power_law([(each.requests_per_day, value) for each, value in zip(plans, known, strict=True)])[1]
