"""Wait until a terminating vLLM has no requests, as the preStop hook of its container.

The script waits until no request is running or waiting, and for at least `DRAIN_SECONDS_MIN`: the gateway sends new
requests until it notices that DNS no longer lists the pod. If the engine does not respond, the script exits
immediately. It needs only the Python standard library.
"""

# ruff: noqa: INP001, T201 (standalone script that queries only its own engine and prints to the pod's log)
import os
import sys
import time
import urllib.request

ENGINE = os.environ.get("DRAIN_ENGINE", "http://127.0.0.1:8000")
# DNS responses can be half a minute old. The gateway drops an endpoint after three lookups, five seconds apart.
SECONDS_MIN = float(os.environ.get("DRAIN_SECONDS_MIN", "50"))
# Longer than the longest attempt, which may start just before the gateway notices that the pod is terminating. Less
# than terminationGracePeriodSeconds, so that the engine has time to exit.
SECONDS_MAX = float(os.environ.get("DRAIN_SECONDS_MAX", "3720"))
POLL_SECONDS = float(os.environ.get("DRAIN_POLL_SECONDS", "1"))
IDLE_POLLS = 3
OPEN_METRICS = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def open_requests() -> float:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{ENGINE}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0].split(" ")[0] in OPEN_METRICS)


def main() -> int:
    began = time.monotonic()
    idle = 0
    while (waited := time.monotonic() - began) < SECONDS_MAX:
        try:
            idle = idle + 1 if open_requests() == 0 else 0
        except OSError as error:
            print(f"drain: the engine does not respond ({error})")
            return 0
        if idle >= IDLE_POLLS and waited >= SECONDS_MIN:
            print(f"drain: idle after {waited:.0f} s")
            return 0
        time.sleep(POLL_SECONDS)
    print(f"drain: requests are still running after {SECONDS_MAX:.0f} s and will be aborted")
    return 1


if __name__ == "__main__":
    sys.exit(main())
