"""Rotate certificates under open streams, and compare the CPU cost of requests over TLS with nginx.

    just tls [--quick] [--seconds S] [--streams N] [--assert] [--gateway-command COMMAND]

The first part opens streams over TLS and replaces the certificate several times while they run. A stream is broken if
it does not end with all of its chunks. A new connection must get each new certificate.

The second part measures short non-streaming requests on open connections, through the gateway and through nginx, both
with TLS and the same certificate. Rounds alternate, and the best round of each counts.

Progress goes to stderr. The last line is the results as JSON.
"""

import argparse
import asyncio
import contextlib
import json
import math
import ssl
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns

from bench.baseline_proxies import find_nginx
from bench.cli import (
    FailedRequests,
    add_common_arguments,
    print_progress,
    report_problem,
    stop_cleanly_on_sigterm,
    window_seconds,
)
from bench.connection import Answer, Connection, a_request, chat_body, connect
from bench.cpu_cores import Cores, TooFewCores, started_on, two_cores
from bench.load_generator import LoadPlan, LoadResult
from bench.mock_upstream import EVENTS_AFTER_TOKENS, MODEL
from bench.run_load import run_load
from bench.targets import START_SECONDS_MAX, Target, gateway, upstream
from testing.certificates import Authority, CertificateFiles
from testing.ports import free_ports
from testing.processes import ChildProcess, MissingProgram, ProcessFailedError

STREAMS = 200
ROTATIONS, QUICK_ROTATIONS = 5, 2
CHUNKS, QUICK_CHUNKS = 300, 60
PACE_MS = 50
ROUNDS, QUICK_ROUNDS = 5, 1
SECONDS, QUICK_SECONDS = 6.0, 0.5
CONNECTIONS = 16
_ROTATED_S_MAX = 30.0
_STREAM_S_MAX = 120.0

_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 100000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engine {{
        server 127.0.0.1:{upstream_port};
        keepalive 1024;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{plain_port};
        listen 127.0.0.1:{port} ssl backlog=4096;
        ssl_certificate {files.certificate};
        ssl_certificate_key {files.key};
        ssl_protocols TLSv1.2 TLSv1.3;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@contextmanager
def nginx_with_tls(core: int, upstream_port: int, folder: Path, files: CertificateFiles) -> Generator[Target]:
    port, plain_port = free_ports(2)
    folder.mkdir()
    file = folder / "nginx.conf"
    file.write_text(
        _NGINX.format(folder=folder, upstream_port=upstream_port, port=port, plain_port=plain_port, files=files)
    )
    with started_on(core):
        process = ChildProcess("nginx", [find_nginx(), "-p", folder, "-c", file, "-e", "stderr"])
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{plain_port}/health", START_SECONDS_MAX)
        yield Target("nginx", port, MODEL, "none", process)


# Streams during rotations


@dataclass(slots=True)
class _Streams:
    """Counts the ends of streams. Implements `Asker`."""

    expected_events: int
    left: int
    problems: list[str] = field(default_factory=list[str])
    begun: set[Connection] = field(default_factory=set[Connection])
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def got_events(self, count: int) -> None:
        """Does nothing, because each stream's events are counted when it ends."""

    def ended(self, connection: Connection, answer: Answer) -> None:
        if answer.problem is None and answer.events != self.expected_events:
            answer.problem = f"received {answer.events} events, expected {self.expected_events}"
        if answer.problem is not None:
            self.problems.append(answer.problem)
        self.left -= 1
        if not self.left:
            self.over.set()


async def broken_streams(
    target: Target, authority: Authority, *, streams: int, chunks: int, rotations: int
) -> tuple[int, int]:
    """Return how many streams broke and how often a new certificate came into use while they were open."""
    tls = authority.client_context()
    body = json.dumps(chat_body(target.model, chunks=chunks, pace_ms=PACE_MS)).encode()
    asker = _Streams(chunks + EVENTS_AFTER_TOKENS, streams)
    connections = [await connect(target.port, asker, tls) for _ in range(streams)]
    for connection in connections:
        connection.ask(a_request(body, port=target.port, key=target.key), monotonic_ns())
    done = 0
    try:
        async with asyncio.timeout(_STREAM_S_MAX):
            for _ in range(rotations):
                before = await _serial_number(target.port, tls)
                authority.issue()
                async with asyncio.timeout(_ROTATED_S_MAX):
                    while await _serial_number(target.port, tls) == before:  # noqa: ASYNC110 (another process changes it)
                        await asyncio.sleep(0.05)
                done += asker.left == streams
            await asker.over.wait()
    except TimeoutError:
        asker.problems += ["the stream did not end"] * asker.left
    finally:
        for connection in connections:
            connection.abort()
    for problem in sorted(set(asker.problems))[:5]:
        print_progress(f"broken: {problem}")
    return len(asker.problems), done


async def _serial_number(port: int, tls: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    found: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return found


# Cost of requests


def cpu_us_per_request(done: LoadResult) -> float:
    return done.cpu_ns / 1e3 / max(1, done.requests)


def request_cost_ratio(
    targets: Sequence[Target], cores: Cores, authority: Authority, *, rounds: int, seconds: float
) -> float:
    """Return the gateway's CPU time per request divided by nginx's."""
    least = {target.name: math.inf for target in targets}
    for number in range(rounds):
        for target in targets:
            plan = LoadPlan(
                port=target.port,
                key=target.key,
                model=target.model,
                connections=CONNECTIONS,
                warm_up_s=0.5,
                pids=target.pids,
                core=cores.target,
                seconds=seconds,
                ca=authority.file,
            )
            cost = cpu_us_per_request(run_load(target, plan, cores, load="requests"))
            least[target.name] = min(least[target.name], cost)
            print_progress(f"[{number + 1}/{rounds}] {target.name:8} {cost:.0f} µs of CPU per request over TLS")
    return least["gateway"] / least["nginx"] if least["nginx"] else math.inf


def measure(args: argparse.Namespace) -> dict[str, float]:
    cores, quick = two_cores(), args.quick
    find_nginx()
    seconds = args.seconds or (QUICK_SECONDS if quick else SECONDS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-tls-")))
        authority = Authority(folder / "pki")
        files = authority.issue()
        behind = stack.enter_context(upstream(cores.instruments))
        settings = {"listen_tls": files._asdict()}
        running = gateway(
            cores.target,
            f"http://127.0.0.1:{behind.port}",
            folder / "gateway",
            command=args.gateway_command,
            settings=settings,
        )
        ours = stack.enter_context(running)
        broken, rotations = asyncio.run(
            broken_streams(
                ours,
                authority,
                streams=args.streams,
                chunks=QUICK_CHUNKS if quick else CHUNKS,
                rotations=QUICK_ROTATIONS if quick else ROTATIONS,
            )
        )
        print_progress(f"{args.streams} streams, {broken} broken, {rotations} rotations while all were open")
        nginx = stack.enter_context(nginx_with_tls(cores.target, behind.port, folder / "nginx", files))
        rounds = QUICK_ROUNDS if quick else ROUNDS
        ratio = request_cost_ratio((nginx, ours), cores, authority, rounds=rounds, seconds=seconds)
    return {
        "streams": args.streams,
        "broken": broken,
        "rotations": rotations,
        "request_cpu_over_nginx_tls": round(ratio, 3),
    }


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        figures = measure(args)
    except (MissingProgram, TooFewCores, FailedRequests, ProcessFailedError) as problem:
        return report_problem("tls", str(problem))
    except KeyboardInterrupt:
        return report_problem("tls", "interrupted; all processes were stopped", status=130)
    print(json.dumps(figures), flush=True)
    return 1 if args.check and (figures["broken"] or not figures["rotations"]) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tls", description=str(__doc__).partition("\n")[0])
    made.add_argument("--quick", action="store_true", help="use short streams, fewer rotations and one short round")
    made.add_argument("--seconds", type=window_seconds, metavar="S", help="length of each window, in seconds")
    made.add_argument("--streams", type=int, default=STREAMS, metavar="N", help=f"open streams (default {STREAMS})")
    add_common_arguments(made, bar="a stream broke or no certificate was rotated while all streams were open")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
