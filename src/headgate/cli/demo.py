"""Run a gateway with simulated engines under overload, on a machine without a GPU.

The demo starts a gateway, three simulated engines and a load generator that sends more traffic than the engines can
serve. Each is a separate process, started with the same commands that a user would type. Two tenants share the
interactive class, and one of them sends three times as many requests as the other. There are also long prompts and
batch requests. The time to first token stays short for interactive requests, while batch requests wait.

With `--incident`, the demo starts healthy and then injects one incident (`demo_incidents.py`). The verdict in the
console identifies its cause.
"""

import argparse
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from textwrap import dedent, indent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.cli.demo_incidents import DemoIncident
    from headgate.cli.output.demo import DemoAccess
    from headgate.cli.output.top_screen import Status

ENGINES = 3
PROFILE = "rtxpro6000-llama-8b"
MODEL = "demo"
TENANTS = ("acme", "bolt", "nightly")
_DRILL_TENANT = "drill"
"""Tenant without traffic, for `headgate drill overload`."""
KEY_SECRET_VARIABLE = "HEADGATE_KEY_SECRET"
INCIDENTS = ("long-prompts", "noisy-tenant", "engine-hang", "retry-storm", "launch")

# `--mix` options of `headgate loadtest`.
MIX = (
    "class=interactive,tenant=acme,key=env:KEY_ACME,share=0.36,prompt=200:1500,output=50:250",
    "class=interactive,tenant=bolt,key=env:KEY_BOLT,share=0.12,prompt=200:1500,output=50:250",
    "class=long,tenant=bolt,key=env:KEY_BOLT,share=0.05,prompt=8500:16000,output=50:250",
    "class=batch,tenant=nightly,key=env:KEY_NIGHTLY,share=0.47,prompt=500:4000,output=200:600",
)
# About twice the engines' capacity at these request sizes. Interactive requests account for half of the load.
RATE = 12.0

_START_S_MAX = 30.0
_STOP_S_MAX = 10.0
_TRAFFIC_S = 2 * 3600.0
_INCIDENT_S = 1800.0
"""Maximum duration of traffic and of an incident. All requests are generated before the first one is sent. Generating a
whole day of traffic would delay the start by ten seconds.
"""
_REQUEST_TIMEOUT_S = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate", type=float, metavar="R", help=f"Requests per second (default {RATE:g}; 5 with --incident)."
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="Duration (default: until q or Ctrl-C).")
    parser.add_argument(
        "--incident", choices=INCIDENTS, help="Incident to inject after a healthy period (default: none)."
    )
    parser.add_argument("--plain", action="store_true", help="Print progress lines instead of the live view.")


def run(args: argparse.Namespace, demo_factory: "Callable[[argparse.Namespace, Path], Demo] | None" = None) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Closing the terminal stops the demo and its processes, like Ctrl-C.
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
        demo = (demo_factory or _demo)(args, Path(folder))
        try:
            code = demo.show(args.seconds, view=sys.stdout.isatty() and not args.plain)
            demo.summarize()
            return code
        except KeyboardInterrupt:
            demo.summarize()
            return 0
        except DemoFailed as failure:
            print(f"headgate demo: {failure}", file=sys.stderr)
            return 1
        finally:
            demo.stop()


def _demo(args: argparse.Namespace, folder: Path) -> "Demo":
    if args.incident is None:
        return Demo(folder, args.rate or RATE)
    from headgate.cli.demo_incidents import INCIDENTS as KNOWN
    from headgate.cli.demo_incidents import RATE as USUAL_RATE

    return IncidentDemo(folder, args.rate or USUAL_RATE, KNOWN[args.incident])


class DemoFailed(Exception):
    """A demo process did not start. The message identifies it and quotes its output."""


class Demo:
    tenants: tuple[str, ...] = TENANTS

    def __init__(self, folder: Path, rate: float) -> None:
        self._folder = folder
        self._rate = rate
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = _free_ports(ENGINES + 2)
        self._keys = {tenant: _new_key() for tenant in (*self.tenants, _DRILL_TENANT)}
        self._operator_key = _new_key()
        self._variables = {f"KEY_{tenant.upper()}": key for tenant, key in self._keys.items()}
        self._environment = {**os.environ, KEY_SECRET_VARIABLE: secrets.token_urlsafe(32), **self._variables}
        self._first_status: Status | None = None

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[-1]}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports[-2]}"

    @property
    def _configuration_file(self) -> Path:
        return self._folder / "headgate.yaml"

    @cached_property
    def access(self) -> "DemoAccess":
        """Addresses, keys and commands, which work exactly as printed."""
        from headgate.cli.output.demo import DemoAccess

        endpoint = "simulated/1" if self._first_status is None else self._first_status["endpoints"][0]["id"]
        key = f"env:KEY_{self.tenants[0].upper()}"
        return DemoAccess(
            self.url,
            self.admin_url,
            caller_key=next(iter(self._keys.values())),
            operator_key=self._operator_key,
            environment=str(self._folder / "env"),
            commands=(
                f"headgate operate drain {endpoint} --for 1m",
                "headgate doctor --live",
                f"headgate report --config {shlex.quote(str(self._configuration_file))}",
                f"headgate loadtest --url $HEADGATE_URL --model {MODEL} --rate 2 --api-key {key}",
            ),
        )

    def show(self, seconds: float | None, *, view: bool) -> int:
        from headgate.cli.top import watch

        print("headgate demo: starting simulated engines and a gateway", file=sys.stderr)
        self._start_engines()
        self._configuration_file.write_text(self._configuration())
        self._start("gateway", "serve", "--config", str(self._configuration_file))
        self._first_status = self._wait_until_ready()
        self._print_introduction()
        self._start_workload(seconds)
        if view:
            return watch(self.admin_url, seconds=seconds, header=self._header)
        return self._print_updates(seconds)

    def summarize(self) -> None:
        """Prints a summary of the requests so far. Prints nothing if the gateway never became ready or has exited."""
        from headgate.cli.output.demo import summary
        from headgate.cli.top import fetch_status

        last = None if self._first_status is None else fetch_status(self.admin_url)
        if self._first_status is not None and last is not None:
            print("\n".join(["", *summary(self._first_status, last), self._verdict()[1]]), flush=True)

    def stop(self) -> None:
        """Stops the child processes by PID, in reverse order of starting."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        children = list(self._children.values())[::-1]
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
                # A stopped process handles the signal only after SIGCONT.
                child.send_signal(signal.SIGCONT)
        until = time.monotonic() + _STOP_S_MAX
        for child in children:
            try:
                child.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    # Output

    def _print_introduction(self) -> None:
        from headgate.cli.drill import DRILL_KEY_VARIABLE
        from headgate.cli.output.demo import environment_file, introduction

        variables = {
            "HEADGATE_URL": self.url,
            "HEADGATE_ADMIN_URL": self.admin_url,
            "HEADGATE_ADMIN_KEY": self._operator_key,
            KEY_SECRET_VARIABLE: self._environment[KEY_SECRET_VARIABLE],
            **self._variables,
            DRILL_KEY_VARIABLE: self._keys[_DRILL_TENANT],
        }
        file = self._folder / "env"
        file.touch(mode=0o600)
        file.write_text(environment_file(variables, str(Path(sys.executable).parent)))
        lines = ["headgate demo: ready", *introduction(self.access)]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _header(self) -> str:
        from headgate.cli.output.demo import commands_to_try

        return "\n".join([self._status_line(), *commands_to_try(self.access)])

    def _start_workload(self, seconds: float | None) -> None:
        """Starts the traffic."""
        self._start_traffic("traffic", MIX, self._rate, seconds or _TRAFFIC_S, ("--client-timeout", "30"))

    def _status_line(self) -> str:
        return f"console: {self.admin_url}/console/"

    def _print_updates(self, seconds: float | None) -> int:
        """Prints a line whenever the state or the verdict changes."""
        until = None if seconds is None else time.monotonic() + seconds
        told = ("", "")
        while until is None or time.monotonic() < until:
            self._check_children("gateway")
            above, (matter, sentence) = self._status_line(), self._verdict()
            if (above, matter) != told:
                print(f"{above} | {sentence}", flush=True)
                told = above, matter
            time.sleep(1.0)
        return 0

    def _verdict(self) -> tuple[str, str]:
        """The gateway's first verdict, as an incident and a sentence."""
        try:
            with urllib.request.urlopen(f"{self.admin_url}/verdict", timeout=_REQUEST_TIMEOUT_S) as answer:  # noqa: S310 (ours)
                found: dict[str, list[dict[str, str]]] = json.load(answer)
        except (OSError, ValueError):
            return "", "no verdict yet"
        for each in found.get("verdicts", ()):
            return each["incident"], f"{each['cause']}: {each['sentence']}"
        return "", "no verdict yet"

    # Processes

    def _start_engines(self) -> None:
        for number in range(ENGINES):
            port = str(self._ports[number])
            self._start(f"engine-{number + 1}", "engine", "--profile", PROFILE, "--model", MODEL, "--port", port)

    def _start_traffic(
        self, name: str, mix: Sequence[str], rate: float, seconds: float, client_options: Sequence[str]
    ) -> None:
        traffic = [part for each in mix for part in ("--mix", each)]
        lasting = ("--rate", f"{rate:g}", "--duration", f"{seconds:g}", "--ignore-eos")
        self._start(name, "loadtest", "--url", self.url, "--model", MODEL, *lasting, *client_options, *traffic)

    def _start(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            # Start the process in its own session, so that Ctrl-C reaches only the demo, which then stops its processes
            # in order.
            self._children[name] = subprocess.Popen(  # noqa: S603 (our own verbs)
                [sys.executable, "-m", "headgate.cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def _wait_until_ready(self) -> "Status":
        """Returns the first status in which every engine is ready."""
        from headgate.cli.top import fetch_status

        until = time.monotonic() + _START_S_MAX
        while time.monotonic() < until:
            self._check_children()
            status = fetch_status(self.admin_url)
            if status is not None and _ready(status) >= self._initial_engine_count:
                return status
            time.sleep(0.1)
        raise DemoFailed(f"the engines were not ready within {_START_S_MAX:g} s:\n{self._log('gateway')}")

    @property
    def _initial_engine_count(self) -> int:
        """Number of engines at the start."""
        return ENGINES

    def _check_children(self, *names: str) -> None:
        """Raises `DemoFailed` if one of these processes has exited. Checks all processes if none are given."""
        for name, child in self._children.items():
            if child.poll() is not None and (not names or name in names):
                raise DemoFailed(f"{name} exited with status {child.returncode}:\n{self._log(name)}")

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def _configuration(self) -> str:
        from headgate.wire.keys import digest, format_digest

        secret = self._environment[KEY_SECRET_VARIABLE].encode()
        tenants = "\n".join(
            f'  {tenant}: {{keys: ["{format_digest(digest(secret, key))}"]}}' for tenant, key in self._keys.items()
        )
        operator = format_digest(digest(secret, self._operator_key))
        head = dedent(f"""\
            listen: 127.0.0.1:{self._ports[-2]}
            admin_listen: 127.0.0.1:{self._ports[-1]}
            drain_grace: 1s
            key_secret: ${{{KEY_SECRET_VARIABLE}}}
            admin_keys: {{operator: {{key: "{operator}", permissions: [read, operate, record]}}}}
            pools:
              simulated:
                engine: vllm
                served_model: {MODEL}
            """)
        pool, classes = indent(dedent(self._pool()), "    "), dedent(self._classes())
        return f"{head}{pool}models:\n  {MODEL}: simulated\n{classes}tenants:\n{tenants}\n"

    def _pool(self) -> str:
        return f"""\
            in_flight_max: 12
            {self._endpoints()}
            speed: {PROFILE}
            prices: {{per_hour: 1.5}}
            """

    def _endpoints(self) -> str:
        return "endpoints: [" + ", ".join(f'"http://127.0.0.1:{port}"' for port in self._ports[:ENGINES]) + "]"

    def _classes(self) -> str:
        return """\
            classes:
              interactive:
                ttft: 2s
                tpot: 25ms
                stage_budget: {queue: 1s, prefill: 1s}
                objectives: {ttft_percent: 95, availability_percent: 99}
              long: {}
              batch: {}
            """


class IncidentDemo(Demo):
    """A demo that starts healthy and then injects an incident."""

    def __init__(self, folder: Path, rate: float, incident: "DemoIncident") -> None:
        from headgate.cli import demo_incidents

        self.tenants = demo_incidents.TENANTS
        super().__init__(folder, rate)
        self._defaults = demo_incidents
        self._incident = incident
        self._incident_at = 0.0
        self._seconds: float | None = None
        self._incident_active = False

    def _start_workload(self, seconds: float | None) -> None:
        self._incident_at = time.monotonic() + self._defaults.HEALTHY_S
        self._seconds = seconds
        self._start_traffic(
            "traffic", self._defaults.NORMAL_TRAFFIC, self._rate, seconds or _TRAFFIC_S, ("--client-timeout", "30")
        )

    def _status_line(self) -> str:
        left_s = self._incident_at - time.monotonic()
        if left_s <= 0 and not self._incident_active:
            self._incident_active = True
            self._trigger_incident()
        if self._incident_active:
            state = f"incident: {self._incident.description}"
        else:
            state = f"healthy; the gateway is learning its usual load; the incident starts in {round(left_s, -1):.0f} s"
        return f"console: {self.admin_url}/console/ | {state}"

    def _trigger_incident(self) -> None:
        incident = self._incident
        if incident.replaces_traffic:
            self._children["traffic"].send_signal(signal.SIGINT)
        if incident.rate:
            self._start_traffic(
                "incident", incident.mix, incident.rate, self._seconds or _INCIDENT_S, incident.client_options
            )
        if incident.hung_engine:
            self._children[incident.hung_engine].send_signal(signal.SIGSTOP)

    @property
    def _initial_engine_count(self) -> int:
        return 2 if self._incident.cold_start_s else ENGINES

    def _start_engines(self) -> None:
        if self._incident.cold_start_s:
            return
        for number in range(ENGINES):
            port = str(self._ports[number])
            arguments = ("--profile", self._defaults.PROFILE, "--model", MODEL, "--port", port)
            self._start(f"engine-{number + 1}", "engine", *arguments)

    def _pool(self) -> str:
        return f"""\
            in_flight_max: {self._defaults.IN_FLIGHT_MAX}
            {self._fleet() if self._incident.cold_start_s else self._endpoints()}
            speed: {self._defaults.PROFILE}
            prices: {{per_hour: 12}}
            """

    def _fleet(self) -> str:
        """Fleet section for engines started by the gateway: the initial engines are ready immediately;
        later ones have a cold start.
        """
        engine = shlex.join([sys.executable, "-m", "headgate.cli.main", "engine", "--profile", self._defaults.PROFILE])
        slowly = f"[ {{slot}} -lt {self._initial_engine_count} ] && cold=0 || cold={self._incident.cold_start_s:g}"
        shell = f"{slowly}; exec {engine} --model {{model}} --port {{port}} --cold-start $cold"
        command = json.dumps(["sh", "-c", shell])
        scaling = f"endpoints_min: {self._initial_engine_count}, endpoints_max: 5, period: 5s, cold_start: 30s"
        logs = json.dumps(str(self._folder / "engines"))
        return (
            f"fleet: {{kind: processes, command: {command}, endpoint_count: {self._initial_engine_count}, "
            f"log_directory: {logs}}}\n"
            f"            scaling: {{{scaling}}}"
        )

    def _classes(self) -> str:
        return """\
            classes:
              interactive:
                ttft: 2s
                tpot: 75ms
                stage_budget: {queue: 500ms, prefill: 1s}
                objectives: {ttft_percent: 99, availability_percent: 99}
              long: {}
              batch: {}
            """


def _new_key() -> str:
    return f"hg-{secrets.token_urlsafe(32)}"


def _ready(status: Mapping[str, Sequence[Mapping[str, object]]]) -> int:
    return sum(endpoint["state"] == "ready" for endpoint in status["endpoints"])


def _free_ports(count: int) -> list[int]:
    """Distinct free ports. All sockets stay open until the last port has been chosen."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
