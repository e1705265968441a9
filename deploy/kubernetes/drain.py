"""When may a vLLM that Kubernetes is about to end be ended?

When it has neither a request that runs nor one that waits, and nobody sends it new ones: the gateway stops doing so
when DNS no longer names the pod and it has noticed, so there is a least time to wait whatever is running. It runs as
preStop in the engine's container and needs only Python. Where the engine answers no more there is nothing to wait for.
"""

# ruff: noqa: INP001, T201 (a script of its own, which asks only its own engine and talks to people)
import os
import sys
import time
import urllib.request

ENGINE = os.environ.get("DRAIN_ENGINE", "http://127.0.0.1:8000")
# DNS may be half a minute old, and the gateway believes the third answer in a row, five seconds apart.
SECONDS_MIN = float(os.environ.get("DRAIN_SECONDS_MIN", "50"))
# Below terminationGracePeriodSeconds, so that the engine still ends by itself.
SECONDS_MAX = float(os.environ.get("DRAIN_SECONDS_MAX", "630"))
POLL_SECONDS = float(os.environ.get("DRAIN_POLL_SECONDS", "1"))
IDLE_POLLS = 3
OPEN = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def open_requests() -> float:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{ENGINE}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0].split(" ")[0] in OPEN)


def main() -> int:
    began = time.monotonic()
    idle = 0
    while (waited := time.monotonic() - began) < SECONDS_MAX:
        try:
            idle = idle + 1 if open_requests() == 0 else 0
        except OSError as error:
            print(f"drain: the engine answers no more ({error})")
            return 0
        if idle >= IDLE_POLLS and waited >= SECONDS_MIN:
            print(f"drain: idle after {waited:.0f} s")
            return 0
        time.sleep(POLL_SECONDS)
    print(f"drain: still busy after {SECONDS_MAX:.0f} s; what runs is cut")
    return 1


if __name__ == "__main__":
    sys.exit(main())
