"""Processes of a complete cell: start, observe and kill them.

There are simulated engines of two colours, four gateways, sometimes two scheduler-only processes, and the clients. Each
of the two configurations uses only one colour for everything a request touches, so any mixing is detected. All
processes are stopped by ID when the block exits (testing/processes.py). The caller owns the store.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.cli import print_progress
from bench.kill_cell.load import Gateway, Plan
from bench.kill_cell.record import Record
from testing.ports import free_port
from testing.processes import ChildProcess, ProcessFailedError
from testing.simulated_engines import HEADGATE, simulated_engines

COLOURS = ("amber", "blue")
MODEL = "m"
GATEWAYS = 4
ENGINES = 2
"""Number of engines of each colour."""
PROFILE, SPEED_UP = "h100x8-llama-70b", 0.5
"""Profile and speed that give about 14 tokens per second per response, so that streams are long but use little CPU."""
IN_FLIGHT_MAX = 128
STREAMS_PER_S, PLAIN_PER_S, LONG_EVERY = 8.0, 1.0, 10
SHORT_TOKENS, LONG_TOKENS_MIN, LONG_TOKENS_MAX = 5, 130, 230
LIMITS = {"requests_per_minute": 40_000, "tokens_per_minute": 4_000_000, "concurrency": 2_000}
"""Limits far above the load, even when divided by the number of gateways. Hitting one is a bug."""
DRAIN_GRACE = "60s"
LOOK_EVERY_S = 0.2
START_S_MAX = 120.0
SETTLE_S_MAX = 180.0

Status = dict[str, Any]


class NotSettled(Exception):
    """The cell did not settle, so later results would be meaningless."""


@dataclass(frozen=True, slots=True)
class StatusSample:
    """Status of one process at one time."""

    at_s: float
    number: int
    status: Status

    @property
    def cell(self) -> Status:
        return self.status.get("cell") or {}


@dataclass
class Part:
    """A gateway or a dedicated scheduler: its settings and its running process."""

    name: str
    verb: str
    file: Path
    port: int
    admin_port: int
    process: ChildProcess | None = None

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"


@dataclass
class Cell:
    folder: Path
    store_url: str | None
    """Store used by the cell. None for independent gateways."""
    seed: int
    dedicated: int = 0
    """Number of scheduler-only processes. If there are any, gateways do not schedule."""
    parts: list[Part] = field(default_factory=list[Part])
    samples: list[StatusSample] = field(default_factory=list[StatusSample])
    colour: int = 0
    _urls: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _stack: ExitStack = field(default_factory=ExitStack)
    _load: ChildProcess | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    # Start and stop

    @contextmanager
    def running(self) -> Iterator["Cell"]:
        with self._stack:
            for colour in COLOURS:
                how = ("--profile", PROFILE, "--speed-up", str(SPEED_UP))
                self._urls[colour] = self._stack.enter_context(simulated_engines(ENGINES, *how, model=colour))
            for number in range(GATEWAYS):
                self.parts.append(self._part(f"gateway-{number}", "serve"))
            for number in range(self.dedicated):
                self.parts.append(self._part(f"scheduler-{number}", "scheduler"))
            self.write_configs()
            self._stack.callback(self._stop_all)
            for part in self.parts:
                self.start(part)
            watcher = threading.Thread(target=self._watch, daemon=True)
            watcher.start()
            self._stack.callback(watcher.join)
            self._stack.callback(self._over.set)
            self.wait_until_settled()
            yield self

    def _part(self, name: str, verb: str) -> Part:
        return Part(name, verb, self.folder / f"{name}.yaml", free_port(), free_port())

    def start(self, part: Part) -> None:
        """Start the process and wait until it is ready."""
        arguments = [*HEADGATE, part.verb, "--config", str(part.file), "--log-format", "json"]
        part.process = ChildProcess(part.name, arguments)
        part.process.wait_until_ok(f"{part.admin_url}/ready", START_S_MAX)

    def kill(self, part: Part) -> float:
        """Kill the process with SIGKILL. Return the time of the kill."""
        assert part.process is not None
        at_s = time.monotonic()
        part.process.kill()
        part.process.wait_until_ended()
        self._keep_log(part)
        return at_s

    def terminate(self, part: Part, seconds_max: float) -> None:
        """Send SIGTERM and wait until the process has exited."""
        assert part.process is not None
        part.process.terminate()
        status = part.process.wait_until_ended(seconds_max)
        if status != 0:
            raise ProcessFailedError(f"{part.name} exited with status {status}:\n{part.process.log()[-3000:]}")
        self._keep_log(part)

    def _keep_log(self, part: Part) -> None:
        assert part.process is not None
        with (self.folder / f"{part.name}.log").open("a") as kept:
            kept.write(part.process.log())
        part.process.stop()
        part.process = None

    def _stop_all(self) -> None:
        for part in self.parts:
            if part.process is not None:
                part.process.kill()
                self._keep_log(part)

    # Configuration

    def write_configs(self) -> None:
        for part in self.parts:
            part.file.write_text(yaml.safe_dump(self._config(part)))

    def _config(self, part: Part) -> dict[str, Any]:
        colour, other = COLOURS[self.colour], COLOURS[1 - self.colour]
        patient = {
            "queue_wait_max": "60s",
            "first_token_timeout": "60s",
            "attempt_timeout": "180s",
            "stream_idle_timeout": "60s",
        }
        made: dict[str, Any] = {
            "listen": f"127.0.0.1:{part.port}",
            "admin_listen": f"127.0.0.1:{part.admin_port}",
            "drain_grace": DRAIN_GRACE,
            "pools": {
                name: {
                    "engine": "vllm",
                    "served_model": name,
                    "in_flight_max": IN_FLIGHT_MAX,
                    "endpoints": urls,
                    "speed": PROFILE,
                }
                for name, urls in self._urls.items()
            },
            "models": {MODEL: {"pools": [colour]}},
            "classes": {
                colour: {"priority_band": 0, "pools": [colour], **patient},
                other: {"priority_band": 0, "pools": [other], "accepts_unclassified": False, **patient},
            },
            "tenants": {"callers": {"classes": [colour], "limits": LIMITS}},
            "anonymous_tenant": "callers",
        }
        if self.store_url is not None:
            made["cell"] = {
                "store": self.store_url,
                "member_name": part.name,
                "member_count": GATEWAYS,
                "gateways_are_candidates": not self.dedicated,
            }
        return made

    def reload(self) -> float:
        """Switch all parts to the other configuration. Return the time at which the signals were sent."""
        self.colour = 1 - self.colour
        self.write_configs()
        at_s = time.monotonic()
        for part in self.parts:
            assert part.process is not None
            os.kill(part.process.pid, signal.SIGHUP)
        return at_s

    # Observation

    def look(self, number: int) -> StatusSample | None:
        """Return the part's status, or None if it does not respond."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.parts[number].admin_url}/status", timeout=10) as page:
                return StatusSample(time.monotonic(), number, json.load(page))
        except (OSError, HTTPException, ValueError):
            return None

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for number in range(len(self.parts)):
                if (seen := self.look(number)) is not None:
                    self.samples.append(seen)

    def latest(self) -> dict[int, StatusSample]:
        looked = (self.look(number) for number in range(len(self.parts)))
        return {each.number: each for each in looked if each is not None}

    @property
    def gateways(self) -> list[int]:
        return [number for number, part in enumerate(self.parts) if part.verb == "serve"]

    def leader(self) -> int:
        """Return the part that leads and that all others follow."""
        while True:
            self.wait_until_settled()
            leading = [number for number, seen in self.latest().items() if seen.cell["leads"]]
            # On a busy machine, leadership may have changed in the meantime.
            if len(leading) == 1:
                return leading[0]

    def wait_until_settled(self) -> float:
        """Wait until all parts are running and following one leader and the endpoints are ready. Return the time."""
        return self._wait(self._is_settled, "settle")

    def _is_settled(self) -> bool:
        latest = self.latest()
        if len(latest) < len(self.parts):
            return False
        colour = COLOURS[self.colour]
        for number in self.gateways:
            ready = [each for each in latest[number].status["endpoints"] if each["state"] == "ready"]
            if sum(each["pool"] == colour for each in ready) < ENGINES:
                return False
        if self.store_url is None:
            return True
        cells = [latest[number].cell for number in self.gateways]
        modes, epochs = {each["mode"] for each in cells}, {each["epoch"] for each in cells}
        leading = sum(bool(seen.cell["leads"]) for seen in latest.values())
        return leading == 1 and modes == {"following"} and len(epochs) == 1

    def wait_until_reloaded(self, before: Sequence[str]) -> float:
        """Wait until every part has applied a new configuration."""

        def reloaded() -> bool:
            latest = self.latest()
            return len(latest) == len(self.parts) and all(
                seen.status["config_hash"] != before[number] and not seen.status["reload_problems"]
                for number, seen in latest.items()
            )

        return self._wait(reloaded, "apply the new configuration")

    def _wait(self, reached: Callable[[], bool], what: str) -> float:
        give_up_at = time.monotonic() + SETTLE_S_MAX
        while not reached():
            if time.monotonic() > give_up_at:
                cells = {number: seen.cell or seen.status for number, seen in self.latest().items()}
                raise NotSettled(f"the cell did not {what} within {SETTLE_S_MAX:g} s; status of its parts: {cells}")
            time.sleep(0.05)
        return time.monotonic()

    def islands(self, since_s: float) -> int:
        """Return how many gateways have been islands since then."""
        return len({each.number for each in self.samples if each.at_s >= since_s and each.cell.get("mode") == "island"})

    # Clients

    @property
    def record_file(self) -> Path:
        return self.folder / "record.jsonl"

    def start_load(self) -> None:
        plan = Plan(
            gateways=tuple(Gateway(self.parts[each].port, self.parts[each].admin_port) for each in self.gateways),
            record=str(self.record_file),
            model=MODEL,
            seed=self.seed,
            streams_per_s=STREAMS_PER_S,
            long_every=LONG_EVERY,
            plain_per_s=PLAIN_PER_S,
            short_tokens=SHORT_TOKENS,
            long_tokens_min=LONG_TOKENS_MIN,
            long_tokens_max=LONG_TOKENS_MAX,
        )
        command = [sys.executable, "-m", "bench.kill_cell.load", msgspec.json.encode(plan).decode()]
        self._load = self._stack.enter_context(ChildProcess("callers", command))

    def stop_load(self) -> list[Record]:
        """Stop sending, wait for the last call and return the records of all calls."""
        assert self._load is not None
        print_progress("stopped sending; waiting for the last streams")
        self._load.terminate()
        self._load.wait_until_ended(180)
        return self.records()

    def records(self) -> list[Record]:
        assert self._load is not None
        if self._load.exit_status not in (None, 0):
            raise ProcessFailedError(f"the clients failed:\n{self._load.log()[-3000:]}")
        with suppress(FileNotFoundError):
            return [
                msgspec.json.decode(line, type=Record)
                for line in self.record_file.read_bytes().splitlines(keepends=True)
                if line.endswith(b"\n")
            ]
        return []
