"""What does asking for several embeddings at once bring, and what does it cost in time?

    just bench-batching [--assert] [--quick] [--engine llamacpp|vllm|triton] [--weights small|real]

A real engine serves embeddings; Triton by tensors, with a model whose every batch takes five milliseconds. Callers ask
for one short text at a time, each anew as soon as it has its answer, through gateways that differ in one thing: whether
they batch, how long they hold a request for company, and how many calls they make at a time. They are measured in
turns, so that they meet the same machine, and stand still while others are; of the rounds the median counts. The last
line compares two of them, which are fixed in advance: 64 callers (the maximum of --concurrency), the rules at the
beginning of docs/guides/batching.md (`JUDGED`) with no batching, and a class whose `ttft` is one second. It prints the
median of the ratios of all rounds. --quick measures only these two.

Beside it stands what an input costs the engine in time of its core, which others who use the machine hardly change:
"cpu ms", and in the last line how many times less of it is used (`engine_cpu_ratio`).

Where the engine has a core to itself client and gateway share the other. The model is two small layers of random
weights by default: on a real accelerator a batch takes about as long as a single input, and on a CPU only a small model
comes near to that. With --weights real it is SmolLM2, where a CPU computes as long as there are tokens.
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

from bench.command import stop_cleanly_on_sigterm, tell
from bench.cores import TooFewCores, cpu_ns_between, cpu_times, family_of, started_on, two_cores
from bench.small_gguf import shrink
from bench.targets import GATEWAY
from testing.ports import free_port
from testing.processes import ChildProcess, MissingPart, ProcessFailedError
from testing.real_engines import (
    LLAMACPP_START_SECONDS_MAX,
    MODEL,
    ROOT,
    VLLM_START_SECONDS_MAX,
    RealEngine,
    environment_of,
    model_folder,
    running,
    vllm_variables,
)
from testing.real_triton import triton

DELAYS_MS = (0, 1, 2, 5, 10, 20)
"""How long a request may be held."""
USUAL_DELAY_MS = 5
CALLS_MAX = (2, 1)
"""With the usual delay, so many calls at a time."""
ALONE, JUDGED = "one by one", "hold, 2 calls"
CONCURRENCIES = (1, 8, 32, 64)
MAX_BATCH = 32
TRITON_MAX_BATCH = 16
"""What its model takes."""
EMBEDDINGS = "/v1/embeddings"
IN_FLIGHT_MAX = 128
BUDGET_MS = 1_000.0
SETTLE_S = 0.3
RATIO_MIN = 1.3
"""Lower bound for --assert. The aim is 2; docs/guides/batching.md reports how often it is reached and its limits."""
WORDS = ("river", "bridge", "clock", "lighthouse", "loom", "orchard", "harbour", "windmill")
ANSWER_S_MAX = 60.0


class WorkFailed(Exception):
    """An answer was not what was asked for, so the time says nothing."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to the engine."""

    name: str
    port: int
    model: str
    path: str
    inputs: int = 1
    """How many texts each request asks for."""
    pid: int | None = None
    """Of the gateway on this way. It stands still while others are measured, and takes nothing from them."""

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
    """One side at one concurrency, over all rounds."""

    inputs_per_s: list[float] = field(default_factory=list[float])
    p50_ms: list[float] = field(default_factory=list[float])
    p99_ms: list[float] = field(default_factory=list[float])
    cpu_ms: list[float] = field(default_factory=list[float])
    """Of the engine, for each input."""

    def figures(self) -> tuple[float, float, float, float]:
        return median(self.inputs_per_s), median(self.p50_ms), median(self.p99_ms), median(self.cpu_ms)


Curve = dict[tuple[str, int], Point]


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        curve, sides = measure(args)
    except (MissingPart, TooFewCores, WorkFailed, ProcessFailedError) as problem:
        tell(f"bench-batching: {problem}")
        return 2
    except KeyboardInterrupt:
        tell("bench-batching: interrupted; nothing is left running")
        return 130
    print(table_of(curve, sides, args.concurrency))
    figures = judged(curve, max(args.concurrency))
    sentences = missed(figures) if args.check else []
    for sentence in sentences:
        tell(sentence)
    print(json.dumps(figures), flush=True)
    return 1 if sentences else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench-batching", description="Embeddings asked one by one, and together.")
    made.add_argument("--engine", choices=("llamacpp", "vllm", "triton"), default="vllm")
    made.add_argument("--weights", choices=("small", "real"), default="small")
    made.add_argument("--seconds", type=float, default=2.0, metavar="S", help="for each point and round")
    made.add_argument("--rounds", type=int, metavar="R", help="3, with --quick 5")
    made.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES), metavar="N")
    made.add_argument("--words", type=int, default=6, metavar="N", help="the length of each text")
    made.add_argument("--quick", action="store_true", help="only what is judged, at the highest concurrency")
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 when a bar is missed")
    return made


# The figures


def judged(curve: Curve, concurrency: int) -> dict[str, float]:
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


def missed(figures: Mapping[str, float]) -> list[str]:
    sentences: list[str] = []
    if figures["requests_per_s_ratio"] < RATIO_MIN:
        sentences.append(
            f"missed: at least {RATIO_MIN:g} times the requests are asked for; docs/guides/batching.md tells why not"
        )
    if figures["p99_ms"] > BUDGET_MS:
        sentences.append(f"missed: 99 of 100 answers are to come within the class's {BUDGET_MS:g} ms")
    return sentences


def table_of(curve: Curve, sides: Sequence[Side], concurrencies: Sequence[int]) -> str:
    head = "".join(f" {f'{number} at once':>31}" for number in concurrencies)
    under = " ".join(f"{'inputs/s':>9}{'p50 ms':>7}{'p99 ms':>8}{'cpu ms':>7}" for _ in concurrencies)
    rows = [f"{'':>14}{head}", f"{'':>14} {under}"]
    for side in sides:
        cells: list[str] = []
        for number in concurrencies:
            rate, p50_ms, p99_ms, cpu_ms = curve[side.name, number].figures()
            cells.append(f"{rate:9.0f}{p50_ms:7.1f}{p99_ms:8.1f}{cpu_ms:7.2f}")
        rows.append(f"{side.name:>14} {' '.join(cells)}")
    return "\n".join(rows)


# The measuring


def measure(args: argparse.Namespace) -> tuple[Curve, list[Side]]:
    curve: Curve = {}
    args.rounds = args.rounds or (5 if args.quick else 3)
    if args.quick:
        args.concurrency = [max(args.concurrency)]
    with all_sides(args.engine, small=args.weights == "small", quick=args.quick) as (engine_pid, sides):
        tell(f"measuring {len(sides)} ways to the engine, {args.rounds} rounds")
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
                tell(f"round {round_number + 1} of {args.rounds}: {concurrency} at once")
    return curve, sides


async def load(side: Side, concurrency: int, *, seconds: float, words: int) -> tuple[float, list[float]]:
    """Inputs a second, and how long the requests took, sorted."""
    began, until = monotonic(), monotonic() + seconds
    took_ms: list[float] = []
    async with asyncio.TaskGroup() as callers:
        for number in range(concurrency):
            callers.create_task(_ask_until(side, number, until, took_ms, words))
    spent = monotonic() - began
    return side.inputs * len(took_ms) / spent, sorted(took_ms)


async def _ask_until(side: Side, number: int, until: float, took_ms: list[float], words: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", side.port, limit=1 << 24)
    try:
        count = 0
        while not count or monotonic() < until:
            began = monotonic_ns()
            writer.write(_question(side, number, count, words))
            async with asyncio.timeout(ANSWER_S_MAX):
                kept = await _answer(side, reader)
            took_ms.append((monotonic_ns() - began) / 1e6)
            count += 1
            if not kept:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", side.port, limit=1 << 24)
    finally:
        writer.close()


def _question(side: Side, number: int, count: int, words: int) -> bytes:
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
    """Whether the connection may be used again. llama.cpp closes it after a hundred answers."""
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
    """The engine's process, and the ways to it."""
    cores = two_cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        tell(f"starting {engine_name} on core {cores.target}; gateways and client on {cores.instruments}")
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
            # Who stands still does not hear that it is to end.
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
    """The section `batching` of each gateway."""
    yield ALONE, None
    for delay_ms in DELAYS_MS:
        yield f"hold {delay_ms} ms", {"max_batch": batch_max, "max_delay": f"{delay_ms}ms"}
    for calls in CALLS_MAX:
        rules: dict[str, object] = {"max_batch": batch_max, "max_delay": f"{USUAL_DELAY_MS}ms", "max_calls": calls}
        yield f"hold, {calls} call{'s' if calls > 1 else ''}", rules


@contextmanager
def _llamacpp(folder: Path, *, small: bool) -> Generator[RealEngine]:
    home, port = environment_of("llamacpp"), free_port()
    model = home / "smollm2.gguf"
    if small:
        shrink(model, folder / "small.gguf")
        model = folder / "small.gguf"
    command = [
        *(home / "bin/python", ROOT / "scripts/engine_llamacpp.py", "--model", model, "--name", MODEL),
        *("--port", port, "--parallel", MAX_BATCH, "--ctx", 256 * MAX_BATCH, "--batch", 256, "--embeddings"),
    ]
    with running("llamacpp", command, {}, port, LLAMACPP_START_SECONDS_MAX) as engine:
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
        with running("vllm", command, vllm_variables(home), port, VLLM_START_SECONDS_MAX) as engine:
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
    """Its port and its process."""
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
        # A late answer is a figure; on a slow machine, a rejected request would end the run.
        "admission": {"certainty_percent": "unlimited"},
        "tenants": {"bench": {}},
        "anonymous_tenant": "bench",
    }
    file = folder / f"gateway-{port}.yaml"
    file.write_text(yaml.safe_dump(config))
    with ChildProcess("gateway", [*GATEWAY, "serve", str(file)], {"PYTHONPATH": str(ROOT / "src")}) as process:
        process.wait_until_ok(f"http://127.0.0.1:{admin_port}/ready", 120)
        yield port, process.pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
