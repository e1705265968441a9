"""How far is what was simulated from what was measured?

Fifteen figures: the time to the first token (TTFT), per further token (TPOT) and to the end (E2E), each as mean, median
and three percentiles over the same requests. An error is relative to the measured figure.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Final

from headgate.model.units import SECOND
from headgate.planning.answers import Answer, Demand

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def figures(demands: Sequence[Demand], answers: Sequence[Answer]) -> dict[str, float]:
    """In seconds, by name: `ttft_mean` … `e2e_p99`."""
    pairs = list(zip(demands, answers, strict=True))
    series = {
        "ttft": [ttft_s(demand, answer) for demand, answer in pairs],
        "tpot": [tpot_s(demand, answer) for demand, answer in pairs if demand.output_tokens > 1],
        "e2e": [e2e_s(demand, answer) for demand, answer in pairs],
    }
    found: dict[str, float] = {}
    for name, values in series.items():
        values.sort()
        found[f"{name}_mean"] = mean(values)
        found |= {f"{name}_{each}": _at(values, share) for each, share in PERCENTILES.items()}
    return found


def errors(measured: Mapping[str, float], simulated: Mapping[str, float]) -> dict[str, float]:
    return {name: simulated[name] / value - 1 for name, value in measured.items()}


def mean_error(errors_by_name: Mapping[str, float]) -> float:
    return mean(abs(each) for each in errors_by_name.values())


def ttft_s(demand: Demand, answer: Answer) -> float:
    return (answer.first_token_at - demand.arrived_at) / SECOND


def tpot_s(demand: Demand, answer: Answer) -> float:
    """Per token after the first, of which there must be one."""
    return (answer.last_token_at - answer.first_token_at) / (demand.output_tokens - 1) / SECOND


def e2e_s(demand: Demand, answer: Answer) -> float:
    return (answer.last_token_at - demand.arrived_at) / SECOND


def _at(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest values where the share falls between them."""
    below, part = divmod(share * (len(ordered) - 1), 1)
    low = ordered[int(below)]
    return low + part * (ordered[min(int(below) + 1, len(ordered) - 1)] - low)
