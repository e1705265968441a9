"""Count the metric series of a gateway without traffic, with few and with more engines.

    python -m bench.metric_series

The last line is JSON: the series of the process itself, and those that each further endpoint adds. A gateway without a
cell is its own scheduler, so it exposes everything that a scheduler does. Traffic adds series, up to the limits of the
[metrics](docs/reference/metrics.md).
"""

import json
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.cli import FailedRequests, report_problem, stop_cleanly_on_sigterm
from testing.gateway import a_config, gateway_process, urls_of
from testing.processes import ProcessFailedError
from testing.simulated_engines import simulated_engines

ENGINES: Final = (1, 3)
SCRAPE_S_MAX: Final = 30.0
PROCESS_MAX: Final = 5_000
"""Target for the series of a process."""


def series(engines: int) -> int:
    """Return the number of series after the gateway has scraped the engines."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-series-")))
        urls = stack.enter_context(simulated_engines(engines))
        config = a_config(*urls, served_model="sim", in_flight_max=8)
        stack.enter_context(gateway_process(config, folder))
        _, admin = urls_of(config)
        return len(_scraped_lines(admin, engines))


def _scraped_lines(admin: str, engines: int) -> list[str]:
    """Return the samples of the metrics page, as soon as it has the metrics of every engine."""
    deadline = time.monotonic() + SCRAPE_S_MAX
    while True:
        with urllib.request.urlopen(f"{admin}/metrics") as reply:  # noqa: S310 (the URL is that of our own gateway)
            lines = [line for line in reply.read().decode().splitlines() if line and not line.startswith("#")]
        if sum(line.startswith("headgate_engine_requests_running{") for line in lines) == engines:
            return lines
        if time.monotonic() > deadline:
            raise FailedRequests(f"the gateway has not scraped {engines} engines within {SCRAPE_S_MAX:g} s")
        time.sleep(0.1)


def main() -> int:
    stop_cleanly_on_sigterm()
    try:
        few, more = (series(each) for each in ENGINES)
    except (FailedRequests, ProcessFailedError) as problem:
        return report_problem("metric-series", str(problem))
    endpoint = (more - few) / (ENGINES[1] - ENGINES[0])
    print(f"{few} series with {ENGINES[0]} engine, {more} with {ENGINES[1]}")
    print(json.dumps({"process": round(few - ENGINES[0] * endpoint), "endpoint": endpoint}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
