"""Benchmark for batched embeddings: throughput gained and latency added.

    just bench-batching [--assert] [--quick] [--engine llamacpp|vllm|triton] [--weights small|real]

A real engine serves embeddings. Triton serves tensors, with a model that takes five milliseconds per batch. Each client
requests one short text at a time and sends the next request as soon as it has the response. The gateways differ only in
their batching settings: none, the maximum delay, and the number of concurrent calls. They are measured in turn on the
same machine, and each is suspended while another is being measured. Each result is the median over the rounds.

The last line compares two fixed configurations at 64 clients (the highest --concurrency): no batching, and the rules
that docs/guides/batching.md starts with (`JUDGED`), for a class with a `ttft` of one second. The ratio is computed per
round, and the median is reported. --quick measures only these two.

The table also shows the engine's CPU time per input ("cpu ms"), which other load on the machine hardly affects. The
last line reports the factor by which batching reduces CPU time (`engine_cpu_ratio`).

If the engine has a core to itself, client and gateway share the other core. By default the model is two small layers of
random weights: on a real accelerator a batch takes about as long as a single input, and on a CPU only a small model
comes close to that. With --weights real the model is SmolLM2, which on a CPU takes time proportional to the number of
tokens.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, monotonic_ns, sleep
from urllib.parse import urlsplit

import uvloop
import yaml

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.cpu_cores import TooFewCores, cpu_ns_between, cpu_times, family_of, started_on, two_cores
from bench.small_gguf import shrink
from bench.targets import GATEWAY
from testing.ports import free_port
from testing.processes import ChildProcess, MissingProgram, ProcessFailedError
from testing.real_engines import (
    LLAMACPP_START_SECONDS_MAX,
    MODEL,
    ROOT,
    VLLM_START_SECONDS_MAX,
    RealEngine,
    environment_of,
    model_folder,
    run_engine,
    vllm_variables,
)
from testing.real_triton import triton

DELAYS_MS = (0, 1, 2, 5, 10, 20)
"""Maximum batch delays measured, in milliseconds."""
USUAL_DELAY_MS = 5
CALLS_MAX = (2, 1)
"""Limits on concurrent calls measured with the usual delay."""
ALONE, JUDGED = "one by one", "hold, 2 calls"
CONCURRENCIES = (1, 8, 32, 64)
MAX_BATCH = 32
TRITON_MAX_BATCH = 16
"""Largest batch that the Triton model accepts."""
EMBEDDINGS = "/v1/embeddings"
IN_FLIGHT_MAX = 128
BUDGET_MS = 1_000.0
SETTLE_S = 0.3
RATIO_MIN = 1.3
"""Minimum ratio for --assert. The goal is 2; docs/guides/batching.md shows how often it is reached and what limits
it.
"""
WORDS = ("river", "bridge", "clock", "lighthouse", "loom", "orchard", "harbour", "windmill")
ANSWER_S_MAX = 60.0


class WorkFailed(Exception):
    """A response was incorrect, so its duration is meaningless."""


@dataclass(frozen=True, slots=True)
class Side:
    """One path to the engine: a gateway, or direct."""

    name: str
    port: int
    model: str
    path: str
    inputs: int = 1
    """Number of texts per request."""
    pid: int | None = None
    """Process ID of this side's gateway, which is suspended while other sides are measured. None for the direct path.
    """

    @contextmanager
    def awake(self) -> Generator[None]:
        if self.pid is None:
            yield
            return
        os.kill(self.pid, signal.SIGCONT)
        sleep(SETTLE_S)
        yield
        os.kill(self.pid, signal.SIGSTOP)


@dataclass(slots=True)
class Point:
    """One side's results at one concurrency, one entry per round."""

    inputs_per_s: list[float] = field(default_factory=list[float])
    p50_ms: list[float] = field(default_factory=list[float])
    p99_ms: list[float] = field(default_factory=list[float])
    cpu_ms: list[float] = field(default_factory=list[float])
    """Engine CPU time per input."""

    def figures(self) -> tuple[float, float, float, float]:
        return median(self.inputs_per_s), median(self.p50_ms), median(self.p99_ms), median(self.cpu_ms)


Curve = dict[tuple[str, int], Point]


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        curve, sides = measure(args)
    except (MissingProgram, TooFewCores, WorkFailed, ProcessFailedError) as problem:
        print_progress(f"bench-batching: {problem}")
        return 2
    except KeyboardInterrupt:
        print_progress("bench-batching: interrupted; all processes were stopped")
        return 130
    print(table_of(curve, sides, args.concurrency))
    figures = judged_figures(curve, max(args.concurrency))
    sentences = missed_thresholds(figures) if args.check else []
    for sentence in sentences:
        print_progress(sentence)
    print(json.dumps(figures), flush=True)
    return 1 if sentences else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench-batching", description="Measure embeddings with and without batching.")
    made.add_argument("--engine", choices=("llamacpp", "vllm", "triton"), default="vllm")
    made.add_argument("--weights", choices=("small", "real"), default="small")
    made.add_argument("--seconds", type=float, default=2.0, metavar="S", help="seconds per point and round (default 2)")
    made.add_argument("--rounds", type=int, metavar="R", help="number of rounds (default 3; with --quick 5)")
    made.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES), metavar="N")
    made.add_argument("--words", type=int, default=6, metavar="N", help="words per text (default 6)")
    made.add_argument("--quick", action="store_true", help="measure only the two compared sides, at the highest load")
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a limit is missed")
    return made


# Results


def judged_figures(curve: Curve, concurrency: int) -> dict[str, float]:
    alone, batched = curve[ALONE, concurrency], curve[JUDGED, concurrency]
    rates = [each / base for base, each in zip(alone.inputs_per_s, batched.inputs_per_s, strict=True)]
    costs = [base / each for base, each in zip(alone.cpu_ms, batched.cpu_ms, strict=True)]
    _, _, p99_ms, _ = batched.figures()
    return {
        "requests_per_s_ratio": round(median(rates), 2),
        "p99_ms": round(p99_ms, 1),
        "budget_ms": BUDGET_MS,
        "engine_cpu_ratio": round(median(costs), 2),
    }


def missed_thresholds(figures: Mapping[str, float]) -> list[str]:
    sentences: list[str] = []
    if figures["requests_per_s_ratio"] < RATIO_MIN:
        sentences.append(
            f"missed: requests_per_s_ratio is {figures['requests_per_s_ratio']:g}; the minimum is {RATIO_MIN:g}. "
            "docs/guides/batching.md explains what limits it."
        )
    if figures["p99_ms"] > BUDGET_MS:
        sentences.append(f"missed: p99_ms is {figures['p99_ms']:g}; the class's ttft objective is {BUDGET_MS:g} ms")
    return sentences


def table_of(curve: Curve, sides: Sequence[Side], concurrencies: Sequence[int]) -> str:
    head = "".join(f" {f'{number} concurrent':>31}" for number in concurrencies)
    under = " ".join(f"{'inputs/s':>9}{'p50 ms':>7}{'p99 ms':>8}{'cpu ms':>7}" for _ in concurrencies)
    rows = [f"{'':>14}{head}", f"{'':>14} {under}"]
    for side in sides:
        cells: list[str] = []
        for number in concurrencies:
            rate, p50_ms, p99_ms, cpu_ms = curve[side.name, number].figures()
            cells.append(f"{rate:9.0f}{p50_ms:7.1f}{p99_ms:8.1f}{cpu_ms:7.2f}")
        rows.append(f"{side.name:>14} {' '.join(cells)}")
    return "\n".join(rows)


# Measurement


def measure(args: argparse.Namespace) -> tuple[Curve, list[Side]]:
    curve: Curve = {}
    args.rounds = args.rounds or (5 if args.quick else 3)
    if args.quick:
        args.concurrency = [max(args.concurrency)]
    with all_sides(args.engine, small=args.weights == "small", quick=args.quick) as (engine_pid, sides):
        print_progress(f"measuring {len(sides)} sides, {args.rounds} rounds")
        for side in sides:
            with side.awake():
                uvloop.run(load(side, 4, seconds=1.0, words=args.words))
        for round_number in range(args.rounds):
            for concurrency in args.concurrency:
                for side in sides:
                    with side.awake():
                        before = cpu_times(family_of(engine_pid))
                        rate, took_ms = uvloop.run(load(side, concurrency, seconds=args.seconds, words=args.words))
                        used_ns = cpu_ns_between(before, cpu_times(family_of(engine_pid)))
                    point = curve.setdefault((side.name, concurrency), Point())
                    point.cpu_ms.append(used_ns / 1e6 / side.inputs / len(took_ms))
                    point.inputs_per_s.append(rate)
                    point.p50_ms.append(took_ms[len(took_ms) // 2])
                    point.p99_ms.append(took_ms[min(len(took_ms) - 1, len(took_ms) * 99 // 100)])
                print_progress(f"round {round_number + 1} of {args.rounds}: {concurrency} concurrent")
    return curve, sides


async def load(side: Side, concurrency: int, *, seconds: float, words: int) -> tuple[float, list[float]]:
    """Return inputs per second and the sorted request durations in milliseconds."""
    began, until = monotonic(), monotonic() + seconds
    took_ms: list[float] = []
    async with asyncio.TaskGroup() as callers:
        for number in range(concurrency):
            callers.create_task(_send_until(side, number, until, took_ms, words))
    spent = monotonic() - began
    return side.inputs * len(took_ms) / spent, sorted(took_ms)


async def _send_until(side: Side, number: int, until: float, took_ms: list[float], words: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", side.port, limit=1 << 24)
    try:
        count = 0
        while not count or monotonic() < until:
            began = monotonic_ns()
            writer.write(_request_body(side, number, count, words))
            async with asyncio.timeout(ANSWER_S_MAX):
                kept = await _answer(side, reader)
            took_ms.append((monotonic_ns() - began) / 1e6)
            count += 1
            if not kept:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", side.port, limit=1 << 24)
    finally:
        writer.close()


def _request_body(side: Side, number: int, count: int, words: int) -> bytes:
    texts = [
        " ".join(WORDS[(number + 3 * count + 5 * at + word) % len(WORDS)] for word in range(words))
        for at in range(side.inputs)
    ]
    if side.path == EMBEDDINGS:
        asked: dict[str, object] = {"model": side.model, "input": texts if side.inputs > 1 else texts[0]}
    else:
        asked = {"inputs": [{"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}]}
    body = json.dumps(asked).encode()
    head = f"POST {side.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def _answer(side: Side, reader: asyncio.StreamReader) -> bool:
    """Return whether the connection can be reused. llama.cpp closes it after a hundred responses."""
    head = await reader.readuntil(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"content-length" in headers:
        body = await reader.readexactly(int(headers[b"content-length"]))
    else:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    told = body.count(b'"embedding":') if side.path == EMBEDDINGS else body.count(b'"shape":[%d,' % side.inputs)
    if not head.startswith(b"HTTP/1.1 200") or told != (side.inputs if side.path == EMBEDDINGS else 1):
        raise WorkFailed(f"{side.name}: {head.split(bytes([13]))[0].decode()} {body[:300].decode(errors='replace')}")
    return headers.get(b"connection") != b"close"


# Engine and gateways


@contextmanager
def all_sides(engine_name: str, *, small: bool, quick: bool) -> Generator[tuple[int, list[Side]]]:
    """Start the engine and the gateways. Yield the engine's process id and the sides to measure."""
    cores = two_cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        print_progress(f"starting {engine_name} on core {cores.target}; gateways and client on {cores.instruments}")
        with started_on(cores.target):
            start = {"llamacpp": _llamacpp, "vllm": _vllm, "triton": _triton}[engine_name]
            engine = stack.enter_context(start(folder, small=small))
        stack.enter_context(started_on(cores.instruments))
        sides: list[Side] = []
        batch_max = TRITON_MAX_BATCH if engine_name == "triton" else MAX_BATCH
        for name, rules in _batchings(batch_max):
            if quick and name not in (ALONE, JUDGED):
                continue
            port, pid = stack.enter_context(_gateway(folder, engine, engine_name, rules))
            # A suspended process does not handle SIGTERM.
            stack.callback(os.kill, pid, signal.SIGCONT)
            path = "/v2/models/m/infer" if engine_name == "triton" else EMBEDDINGS
            sides.append(Side(name, port, "m", path, pid=pid))
        port = urlsplit(engine.url).port or 0
        path = f"/v2/models/{engine.model}/infer" if engine_name == "triton" else EMBEDDINGS
        if not quick:
            sides.append(Side("direct", port, engine.model, path))
            sides.append(Side(f"direct, by {batch_max}", port, engine.model, path, batch_max))
        yield engine.process.pid, sides


def _batchings(batch_max: int) -> Iterator[tuple[str, dict[str, object] | None]]:
    """Yield each gateway's name and `batching` section."""
    yield ALONE, None
    for delay_ms in DELAYS_MS:
        yield f"hold {delay_ms} ms", {"batch_size_max": batch_max, "delay_max": f"{delay_ms}ms"}
    for calls in CALLS_MAX:
        rules: dict[str, object] = {"batch_size_max": batch_max, "delay_max": f"{USUAL_DELAY_MS}ms", "calls_max": calls}
        yield f"hold, {calls} call{'s' if calls > 1 else ''}", rules


@contextmanager
def _llamacpp(folder: Path, *, small: bool) -> Generator[RealEngine]:
    home, port = environment_of("llamacpp"), free_port()
    model = home / "smollm2.gguf"
    if small:
        shrink(model, folder / "small.gguf")
        model = folder / "small.gguf"
    command = [
        *(home / "bin/python", ROOT / "scripts/serve_llamacpp.py", "--model", model, "--name", MODEL),
        *("--port", port, "--parallel", MAX_BATCH, "--ctx", 256 * MAX_BATCH, "--batch", 256, "--embeddings"),
    ]
    with run_engine("llamacpp", command, {}, port, LLAMACPP_START_SECONDS_MAX) as engine:
        yield engine


@contextmanager
def _vllm(folder: Path, *, small: bool) -> Generator[RealEngine]:
    del folder
    home, port = environment_of("vllm"), free_port()
    with model_folder(home / MODEL, tiny=small) as model:
        command = [
            *(home / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port),
            *("--model", model, "--served-model-name", MODEL, "--load-format", "dummy" if small else "auto"),
            *("--dtype", "bfloat16", "--max-model-len", 2048, "--max-num-seqs", 2 * MAX_BATCH, "--enforce-eager"),
            *("--runner", "pooling", "--convert", "embed", "--disable-uvicorn-access-log"),
        ]
        with run_engine("vllm", command, vllm_variables(home), port, VLLM_START_SECONDS_MAX) as engine:
            yield engine


@contextmanager
def _triton(folder: Path, *, small: bool) -> Generator[RealEngine]:
    del folder, small
    with triton("embed") as engine:
        yield engine


@contextmanager
def _gateway(
    folder: Path, engine: RealEngine, engine_name: str, batching: dict[str, object] | None
) -> Generator[tuple[int, int]]:
    """Start a gateway. Yield its port and process id."""
    port, admin_port = free_port(), free_port()
    pool: dict[str, object] = {
        "engine": engine_name,
        "served_model": engine.model,
        "in_flight_max": IN_FLIGHT_MAX,
        "endpoints": [engine.url],
    }
    if batching is not None:
        pool["batching"] = batching
    config = {
        "listen": f"127.0.0.1:{port}",
        "admin_listen": f"127.0.0.1:{admin_port}",
        "drain_grace": "1s",
        "pools": {"bench": pool},
        "models": {"m": "bench"},
        "classes": {"interactive": {"ttft": f"{BUDGET_MS:g}ms"}},
        # Late responses are part of the result, whereas a rejected request would end the run on a slow machine.
        "admission": {"predicted_wait_percent_max": "unlimited"},
        "tenants": {"bench": {}},
        "anonymous_tenant": "bench",
    }
    file = folder / f"gateway-{port}.yaml"
    file.write_text(yaml.safe_dump(config))
    with ChildProcess(
        "gateway", [*GATEWAY, "serve", "--config", str(file)], {"PYTHONPATH": str(ROOT / "src")}
    ) as process:
        process.wait_until_ok(f"http://127.0.0.1:{admin_port}/ready", 120)
        yield port, process.pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
