"""Limits for the relay benchmark's results.

A slow or shared machine makes every absolute number worse but barely affects ratios. CI therefore checks ratios: the
CPU time of a request, for example, relative to what nginx needs for one in the same run. For latencies, CI allows twice
the limit, and checks them only if no other process used the core, because otherwise they would measure the wait for the
core.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

THRESHOLDS: Final = MappingProxyType(
    {"chunk_ratio_to_nginx": 3.0, "request_ratio_to_nginx": 30.0, "added_ttft_ms_p50": 1.0, "added_ttft_ms_p99": 5.0}
)
"""Upper limits on a quiet machine."""
CI_THRESHOLDS: Final = MappingProxyType(
    {"chunk_ratio_to_nginx": 3.0, "request_ratio_to_nginx": 50.0, "added_ttft_ms_p50": 2.0, "added_ttft_ms_p99": 10.0}
)
"""Upper limits in CI, on any machine."""
QUIET_MACHINE_ONLY: Final = ("added_ttft_ms_p50", "added_ttft_ms_p99")


def missed_ci_thresholds(figures: Mapping[str, float], *, quiet: bool) -> list[str]:
    """Return one message per limit exceeded in CI. `quiet` is true if no other process used the machine."""
    return [
        f"{name} is {figures[name]:g}; the limit in CI is {most:g}"
        for name, most in CI_THRESHOLDS.items()
        if not figures[name] <= most and (quiet or name not in QUIET_MACHINE_ONLY)
    ]
