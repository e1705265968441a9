"""What must the relay's figures be?

A machine that is slow, or that others use, makes every absolute figure worse and leaves ratios nearly as they are. CI
therefore holds ratios to a bar, a request's CPU by what nginx takes for one in the same run. Latencies it holds to
twice their bars, and only where others left the core alone: otherwise they tell how long one waits for it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MUST: Final = MappingProxyType(
    {"chunk_ratio_to_nginx": 3.0, "cpu_us_per_request": 400.0, "added_ttft_ms_p50": 1.5, "added_ttft_ms_p99": 6.0}
)
"""At most these, on a quiet machine."""
CI: Final = MappingProxyType(
    {"chunk_ratio_to_nginx": 3.0, "request_ratio_to_nginx": 50.0, "added_ttft_ms_p50": 3.0, "added_ttft_ms_p99": 12.0}
)
"""At most these, on any machine."""
QUIET_ONLY: Final = ("added_ttft_ms_p50", "added_ttft_ms_p99")


def missed_in_ci(figures: Mapping[str, float], *, quiet: bool) -> list[str]:
    """One sentence for each bar that CI's measure says is missed; `quiet` is a machine that others leave alone."""
    return [
        f"{name} is {figures[name]:g}, and CI allows at most {most:g}"
        for name, most in CI.items()
        if not figures[name] <= most and (quiet or name not in QUIET_ONLY)
    ]
