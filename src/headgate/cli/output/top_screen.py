"""The screen of `headgate top`, built from two /status responses: the current one and one from a few seconds ago.

It shows queues, latencies, outcomes and endpoints. The functions are pure: they take statuses and return lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from headgate.wire.escape import escaped

Status = Mapping[str, Any]

_BAR = 10
_NO_VALUE = "-"


def screen(now: Status, before: Status, *, columns: int, rows: int) -> list[str]:
    """At most `rows` lines of at most `columns` characters."""
    lines = [_headline(now), *_cell(now), "", *_classes(now, before), "", _outcomes(now, before), "", *_endpoints(now)]
    lines += [f"! {problem}" for problem in now["reload_problems"]]
    lines += [f"! {each['endpoint_id']}: {problem}" for each in now["engines"] for problem in each.get("problems", ())]
    return [escaped(line)[:columns].rstrip() for line in lines[:rows]]


def served_since(now: Status, before: Status) -> list[str]:
    """Throughput and latency of each class between two statuses, followed by outcomes and waiting requests."""
    return [*_classes(now, before), "", _outcomes(now, before)]


def _headline(now: Status) -> str:
    state = "draining" if now["draining"] else "serving"
    up = int(now["uptime_s"])
    clock = f"{up // 3600}:{up // 60 % 60:02}:{up % 60:02}"
    return f"headgate {now['version']}  {state}  up {clock}  config {now['config_hash']}  open {now['requests_open']}"


def _cell(now: Status) -> list[str]:
    if "cell" not in now:
        return []
    import msgspec

    from headgate.cli.output.cell_status import CellState, cell_lines

    return list(cell_lines(msgspec.convert(now["cell"], CellState)))


# Classes


def _classes(now: Status, before: Status) -> list[str]:
    counts = f"{'class':<14}{'queued':>7}{'req/s':>8}{'served':>8}"
    times = f"{'TTFT p50':>10}{'p99':>9}{'ITL p50':>9}{'wait p99':>10}{'tokens/s':>10}"
    return [counts + times] + [_class_line(name, now, before) for name in now["queued"]]


def _class_line(name: str, now: Status, before: Status) -> str:
    ended = _ended(now, before, name)
    seconds = _seconds_between(now, before)
    total = sum(ended.values())
    served = f"{100 * ended.get('completed', 0) / total:.0f} %" if total else _NO_VALUE
    tokens = _counted(now, name, "output_tokens", 0) - _counted(before, name, "output_tokens", 0)
    return (
        f"{name:<14}{now['queued'][name]:>7}{total / seconds:>8.1f}{served:>8}"
        f"{_quantile(now, before, name, 'time_to_first_token', 0.5):>10}"
        f"{_quantile(now, before, name, 'time_to_first_token', 0.99):>9}"
        f"{_quantile(now, before, name, 'inter_token_latency', 0.5):>9}"
        f"{_quantile(now, before, name, 'queue_wait', 0.99):>10}"
        f"{tokens / seconds:>10.0f}"
    )


def _counted(status: Status, name: str, what: str, default: Any) -> Any:
    return status["counted"]["classes"].get(name, {}).get(what, default)


def _ended(now: Status, before: Status, name: str) -> dict[str, int]:
    old = _counted(before, name, "ended", {})
    new: Mapping[str, int] = _counted(now, name, "ended", {})
    return {outcome: count - old.get(outcome, 0) for outcome, count in new.items() if count > old.get(outcome, 0)}


def _seconds_between(now: Status, before: Status) -> float:
    return max(0.1, now["uptime_s"] - before["uptime_s"])


def _quantile(now: Status, before: Status, name: str, what: str, share: float) -> str:
    new = cast("Sequence[int]", _counted(now, name, what, ()))
    old = cast("Sequence[int]", _counted(before, name, what, (0,) * len(new)))
    counts = [count - was for count, was in zip(new, old, strict=True)]
    return _duration(quantile(counts, now["counted"]["latency_bounds_s"], share))


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Quantile of a histogram, interpolated linearly within each bucket."""
    total = sum(counts)
    if not total:
        return None
    wanted, low = share * total, 0.0
    for count, high in zip(counts, (*bounds, bounds[-1]), strict=True):
        if count >= wanted > 0:
            return low + (high - low) * wanted / count
        wanted, low = wanted - count, high
    return bounds[-1]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _NO_VALUE
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


# Outcomes and endpoints


def _outcomes(now: Status, before: Status) -> str:
    totals: dict[str, int] = {}
    for name in now["counted"]["classes"]:
        for outcome, count in _ended(now, before, name).items():
            totals[outcome] = totals.get(outcome, 0) + count
    told = "  ".join(f"{outcome} {count}" for outcome, count in sorted(totals.items(), key=lambda each: -each[1]))
    return f"outcomes, last {_seconds_between(now, before):.0f} s: {told or 'none'}"


def _endpoints(now: Status) -> list[str]:
    engines = {engine["endpoint_id"]: engine for engine in now["engines"]}
    drained = {order["target"] for order in now.get("overrides", ()) if order["verb"] == "drain"}
    lines = [f"{'endpoint':<30}{'state':<9}{'in flight':<20}{'running':>8}{'waiting':>9}{'KV':>6}"]
    return lines + [
        _endpoint_line(each, engines.get(each["id"], {}), drained=each["id"] in drained) for each in now["endpoints"]
    ]


def _endpoint_line(endpoint: Mapping[str, Any], engine: Mapping[str, Any], *, drained: bool) -> str:
    taken, limit = endpoint["in_flight"], endpoint["in_flight_max"]
    full = min(_BAR, round(_BAR * taken / max(1, limit)))
    bar = f"{'#' * full}{'.' * (_BAR - full)} {taken}/{limit}"
    state = "leaving" if endpoint["leaving"] else "drained" if drained else endpoint["state"]
    telemetry = engine.get("telemetry", {})
    kv = telemetry.get("kv_used_fraction")
    return (
        f"{endpoint['id']:<30}{state:<9}{bar:<20}"
        f"{_or_none(telemetry.get('running')):>8}{_or_none(telemetry.get('waiting')):>9}"
        f"{_NO_VALUE if kv is None else f'{100 * kv:.0f} %':>6}"
    )


def _or_none(value: object) -> str:
    return _NO_VALUE if value is None else str(value)
