"""Compares simulated latencies with measured ones.

There are fifteen statistics: time to first token (TTFT), time per output token after the first (TPOT) and end-to-end
latency (E2E), each as mean, median and three percentiles over the same requests. Errors are relative to the measured
value.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Final

from headgate.model.units import SECOND
from headgate.planning.engine_replay import RunRequest, TokenTimes

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def latency_stats(requests: Sequence[RunRequest], token_times: Sequence[TokenTimes]) -> dict[str, float]:
    """The statistics in seconds, by name: `ttft_mean` … `e2e_p99`."""
    pairs = list(zip(requests, token_times, strict=True))
    series = {
        "ttft": [ttft_s(demand, answer) for demand, answer in pairs],
        "tpot": [tpot_s(demand, answer) for demand, answer in pairs if demand.output_tokens > 1],
        "e2e": [e2e_s(demand, answer) for demand, answer in pairs],
    }
    found: dict[str, float] = {}
    for name, values in series.items():
        values.sort()
        found[f"{name}_mean"] = mean(values)
        found |= {f"{name}_{each}": _percentile(values, share) for each, share in PERCENTILES.items()}
    return found


def relative_errors(measured: Mapping[str, float], simulated: Mapping[str, float]) -> dict[str, float]:
    return {name: simulated[name] / value - 1 for name, value in measured.items()}


def mean_error(errors_by_name: Mapping[str, float]) -> float:
    return mean(abs(each) for each in errors_by_name.values())


def ttft_s(demand: RunRequest, answer: TokenTimes) -> float:
    return (answer.first_token_at - demand.arrived_at) / SECOND


def tpot_s(demand: RunRequest, answer: TokenTimes) -> float:
    """Mean time per output token after the first. The response must have at least two tokens."""
    return (answer.last_token_at - answer.first_token_at) / (demand.output_tokens - 1) / SECOND


def e2e_s(demand: RunRequest, answer: TokenTimes) -> float:
    return (answer.last_token_at - demand.arrived_at) / SECOND


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Quantile with linear interpolation."""
    below, part = divmod(share * (len(ordered) - 1), 1)
    low = ordered[int(below)]
    return low + part * (ordered[min(int(below) + 1, len(ordered) - 1)] - low)
