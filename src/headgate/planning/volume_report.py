"""Text, Markdown and JSON reports of plans for numbers of requests per day."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headgate.model.units import MINUTE, SECOND
from headgate.planning.measured import (
    ATTEMPTS_PER_REQUEST,
    FIGURES,
    LEDGER_ROWS_PER_S,
    SCHEDULER_COMMAND,
    SCHEDULER_CORES,
)
from headgate.planning.volume_plan import DayMix, VolumePlan, growth_exponent
from headgate.simulation.report.text_table import Table, format_amount, format_percent, render_table

GIB: Final = 1024**3
_RETENTION_DAYS: Final = 90
"""Default of `ledger.retention`."""
_FASTER: Final = 1.02
"""Exponent or ratio above which a figure grows faster than the traffic."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: Callable[[VolumePlan], float | None]
    """None if unknown."""
    text: Callable[[float], str]
    scales: bool = True
    """Whether the exponent of its growth is of interest."""


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _usd(value: float) -> str:
    return f"${value:,.0f}" if value >= 100 else f"${value:.2f}"


def _short(value: float) -> str:
    return format_amount(round(value))


def _bytes(value: float) -> str:
    return f"{value / GIB:,.3g} GiB"


def _scaled(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


FLEET_ROWS: Final = (
    Row("cells", lambda each: each.load.cells, _whole),
    Row("peak requests/s, with headroom", lambda each: each.load.cells * each.load.requests_per_s, _whole),
    Row("engines", lambda each: each.engines, _whole),
    Row("GPUs", lambda each: each.gpus, _whole),
    Row("requests per GPU and day", lambda each: each.requests_per_gpu, _short),
    Row("GPU cost per day", lambda each: each.gpu_usd_per_day, _usd),
    Row("GPU cost per million requests", lambda each: _scaled(1e6, each.gpu_usd_per_request), _usd),
)
CONTROL_ROWS: Final = (
    Row("gateway processes", lambda each: each.gateways, _whole),
    Row("gateway cores used at the peak", lambda each: each.gateway_cores, lambda value: f"{value:,.2f}"),
    Row("scheduler-only processes", lambda each: each.schedulers, _whole, scales=False),
    Row("cores used by one cell's scheduler", lambda each: each.scheduler_cores, lambda value: f"{value:.2f}"),
    Row("stores (Redis or Valkey)", lambda each: each.stores, _whole),
    Row("cost of these processes per day", lambda each: each.control_usd_per_day, _usd),
    Row("… per million requests", lambda each: 1e6 * each.control_usd_per_request, _usd),
    Row(
        "… relative to the GPUs",
        lambda each: each.control_usd_per_day / each.gpu_usd_per_day if each.gpu_usd_per_day else None,
        format_percent,
    ),
)
DATA_ROWS: Final = (
    Row("ledger rows per day", lambda each: each.ledger_rows_per_day, _short),
    Row("ledger rows per second at the peak", lambda each: each.ledger_rows_per_s, _whole),
    Row("ledger bytes per day", lambda each: each.ledger_bytes_per_day, _bytes),
    Row(f"ledger in {_RETENTION_DAYS} days", lambda each: _RETENTION_DAYS * each.ledger_bytes_per_day, _bytes),
    Row("record bytes per day", lambda each: each.record_bytes_per_day, _bytes),
    Row("metric series", lambda each: each.series, _whole),
)
SECTIONS: Final = (("Fleet", FLEET_ROWS), ("Headgate's own processes", CONTROL_ROWS), ("Data", DATA_ROWS))


def render_volumes(title: str, mix: DayMix, plans: Sequence[VolumePlan], width: int) -> str:
    parts = [[title, *mix_sentences(mix)]]
    parts += [[name, *render_table(volume_table(plans, rows), width)] for name, rows in SECTIONS]
    parts.append(["One cell", *render_table(cell_table(plans), width)])
    parts.append(["What grows wrongly", *(f"- {each}" for each in wrong_growth(plans))])
    parts.append(["Measured figures", *render_table(measured_table(), width)])
    return "\n\n".join("\n".join(part) for part in parts)


def mix_sentences(mix: DayMix) -> Iterator[str]:
    yield f"{format_amount(round(mix.requests))} requests per day in the scenario"
    minutes = mix.peak_ns / MINUTE
    over = f"{minutes:.3g} {'minute' if minutes == 1 else 'minutes'}"
    yield f"peak: {mix.peak_ratio:.2f} times the mean rate of the day, over {over}"
    yield f"mean request: {mix.prompt_tokens:.0f} prompt tokens and {mix.output_tokens:.0f} output tokens"


def volume_table(plans: Sequence[VolumePlan], rows: Sequence[Row]) -> Table:
    table = [["requests per day", *(format_volume(each) for each in plans)]]
    if len(plans) > 1:
        table[0].append("exponent")
    for row in rows:
        values = [row.value(each) for each in plans]
        cells = ["unknown" if value is None else row.text(value) for value in values]
        if len(plans) > 1:
            exponent = growth_exponent(plans, values) if row.scales else None
            cells.append("" if exponent is None else f"{exponent:.2f}")
        table.append([row.name, *cells])
    return table


def cell_table(plans: Sequence[VolumePlan]) -> Table:
    classes = list(plans[0].attainment)
    pools = [pool for pool, _ in plans[0].endpoints]
    header = ["requests per day", "requests/s", *(f"engines in {pool}" for pool in pools)]
    table = [[*header, *(f"good {name}" for name in classes), "simulated requests", "simulated requests/s"]]
    for each in plans:
        counts = [str(count) for _, count in each.endpoints]
        shares = [format_percent(each.attainment[name]) for name in classes]
        window = f"{format_amount(each.simulated_requests)} in {each.window_ns / SECOND:.0f} s"
        table.append(
            [
                format_volume(each),
                f"{each.load.requests_per_s:.0f}",
                *counts,
                *shares,
                window,
                f"{each.simulated_per_s:.0f}",
            ]
        )
    return table


def wrong_growth(plans: Sequence[VolumePlan]) -> Iterator[str]:
    """Yields sentences about figures that grow otherwise than the traffic, or that reach a measured limit."""
    if len(plans) < 2:
        yield "unknown: plan at least two volumes"
        return
    for _, rows in SECTIONS:
        for row in rows:
            exponent = growth_exponent(plans, [row.value(each) for each in plans]) if row.scales else None
            if exponent is not None and exponent > _FASTER:
                yield f"{row.name}: exponent {exponent:.2f}, so it grows faster than the traffic"
    yield _gpu_sentence(plans[0], plans[-1])
    limit = LEDGER_ROWS_PER_S.value
    if (over := next((each for each in plans if each.ledger_rows_per_s > limit), None)) is not None:
        rows = f"{over.ledger_rows_per_s:,.0f} ledger rows per second at the peak"
        yield (
            f"at {format_volume(over)}, all cells write {rows} ({ATTEMPTS_PER_REQUEST.value:g} per request), more than "
            f"the {limit:,.0f} that were measured with one process and one database; use a database for each few cells"
        )


def _gpu_sentence(first: VolumePlan, last: VolumePlan) -> str:
    ratio = last.requests_per_gpu / first.requests_per_gpu
    sentence = f"a GPU serves {ratio:.1f} times as many requests at {format_volume(last)} as at {format_volume(first)}"
    if ratio <= _FASTER:
        return sentence
    return f"{sentence}; a small pool needs whole engines and more reserve for bursts"


def measured_table(code: str = "") -> Table:
    """`code` encloses each command."""
    table = [["figure", "value", "command"]]
    table += [[each.what, f"{each.value:,g} {each.unit}", f"{code}{each.command}{code}"] for each in FIGURES]
    points = ", ".join(f"{cores:g} at {rate:,}/s" for rate, cores in SCHEDULER_CORES)
    table.append(["cores of a cell's scheduler", points, f"{code}{SCHEDULER_COMMAND}{code}"])
    return table


def format_volume(plan: VolumePlan) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if plan.requests_per_day >= size:
            return f"{plan.requests_per_day / size:g}{unit}"
    return str(plan.requests_per_day)


def volumes_json(title: str, mix: DayMix, plans: Sequence[VolumePlan]) -> dict[str, Any]:
    """Returns the plans as plain values. `mix` and `volumes` can be read again with `read_volumes`."""
    return {
        "title": title,
        "mix": msgspec.to_builtins(mix),
        "volumes": [msgspec.to_builtins(each) for each in plans],
        "exponents": {
            row.name: round(exponent, 4)
            for _, rows in SECTIONS
            for row in rows
            if row.scales and (exponent := growth_exponent(plans, [row.value(each) for each in plans])) is not None
        },
        "wrong_growth": list(wrong_growth(plans)),
    }


def read_volumes(tree: dict[str, Any]) -> tuple[DayMix, list[VolumePlan]]:
    return msgspec.convert(tree["mix"], DayMix), msgspec.convert(tree["volumes"], list[VolumePlan])
