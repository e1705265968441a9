"""What does Headgate look like under pressure, on a laptop without a GPU?

A gateway, three simulated engines and more traffic than they can carry, each a process of its own
started from the very verbs that a user would type, and the live view of it all. Two tenants share
the interactive class, one of them three times as busy; long prompts and a flood of batch work come
on top. What to look for: interactive first tokens stay quick while batch work waits.

With `--incident` all is well at first, and then something goes wrong (`demo_incidents.py`). What to look for: the
verdict on the console's page.
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
    from headgate.cli.demo_incidents import Incident
    from headgate.cli.output.demo import DemoAccess
    from headgate.cli.output.view import Status

ENGINES = 3
PROFILE = "rtxpro6000-llama-8b"
MODEL = "demo"
TENANTS = ("acme", "bolt", "nightly")
SECRET = "HEADGATE_KEY_SECRET"
INCIDENTS = ("long-prompts", "noisy-tenant", "engine-hang", "retry-storm", "launch")

# As `headgate loadtest` takes them: who asks how often for what.
MIX = (
    "class=interactive,tenant=acme,key=env:KEY_ACME,share=0.36,prompt=200:1500,output=50:250",
    "class=interactive,tenant=bolt,key=env:KEY_BOLT,share=0.12,prompt=200:1500,output=50:250",
    "class=long,tenant=bolt,key=env:KEY_BOLT,share=0.05,prompt=8500:16000,output=50:250",
    "class=batch,tenant=nightly,key=env:KEY_NIGHTLY,share=0.47,prompt=500:4000,output=200:600",
)
# With these sizes about twice what the places of the engines can carry; interactive requests alone are half of it.
RATE = 12.0

_START_S_MAX = 30.0
_STOP_S_MAX = 10.0
_TRAFFIC_S = 2 * 3600.0
_INCIDENT_S = 1800.0
"""So long traffic and an incident last at most. All of it is drawn before the first request: of a day that would take
ten seconds in which nothing happens."""
_ASK_S_MAX = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, help=f"requests a second over all callers ({RATE:g}; 5 with --incident)")
    parser.add_argument("--seconds", type=float, help="end by itself after so long; else with Ctrl-C")
    parser.add_argument("--incident", choices=INCIDENTS, help="let this go wrong after a while in which all is well")
    parser.add_argument("--no-view", action="store_true", help="lines of progress instead of the live view")


def run(args: argparse.Namespace, open_demo: "Callable[[argparse.Namespace, Path], Demo] | None" = None) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A terminal that is closed ends the demo as Ctrl-C does, with all that it started.
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
        demo = (open_demo or _demo)(args, Path(folder))
        try:
            # Frames one below the other are of no use to a file or a pipe.
            code = demo.show(args.seconds, view=sys.stdout.isatty() and not args.no_view)
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
    """A part of the demo did not come up; the message says which, and what it said."""


class Demo:
    tenants: tuple[str, ...] = TENANTS

    def __init__(self, folder: Path, rate: float) -> None:
        self._folder = folder
        self._rate = rate
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = _free_ports(ENGINES + 2)
        self._keys = {tenant: _new_key() for tenant in self.tenants}
        self._operator_key = _new_key()
        self._variables = {f"KEY_{tenant.upper()}": key for tenant, key in self._keys.items()}
        self._environment = {**os.environ, SECRET: secrets.token_urlsafe(32), **self._variables}
        self._first: Status | None = None

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[-1]}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports[-2]}"

    @cached_property
    def access(self) -> "DemoAccess":
        """Addresses, keys and commands that work as printed."""
        from headgate.cli.output.demo import DemoAccess

        endpoint = "simulated/1" if self._first is None else self._first["endpoints"][0]["id"]
        return DemoAccess(
            self.url,
            self.admin_url,
            caller_key=next(iter(self._keys.values())),
            operator_key=self._operator_key,
            environment=str(self._folder / "env"),
            commands=(
                f"headgate operate drain {endpoint} --for 1m",
                "headgate doctor --live",
                f"headgate loadtest $HEADGATE_URL --model {MODEL} --rate 2 --key env:KEY_{self.tenants[0].upper()}",
            ),
        )

    def show(self, seconds: float | None, *, view: bool) -> int:
        from headgate.cli.top import watch

        print("headgate demo: starting simulated engines and a gateway", file=sys.stderr)
        self._start_engines()
        file = self._folder / "headgate.yaml"
        file.write_text(self._configuration())
        self._start("gateway", "serve", str(file))
        self._first = self._wait_until_ready()
        self._introduce()
        self._begin(seconds)
        if view:
            return watch(self.admin_url, seconds=seconds, above=self._header)
        return self._tell_lines(seconds)

    def summarize(self) -> None:
        """Prints a summary of the requests so far. Prints nothing if the gateway was never ready or has ended."""
        from headgate.cli.output.demo import summary
        from headgate.cli.top import ask

        last = None if self._first is None else ask(self.admin_url)
        if self._first is not None and last is not None:
            print("\n".join(["", *summary(self._first, last), self._verdict()[1]]), flush=True)

    def stop(self) -> None:
        """Ends what was started, the last first, and by its process id alone."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        children = list(self._children.values())[::-1]
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
                # One that hangs hears of it only when it goes on.
                child.send_signal(signal.SIGCONT)
        until = time.monotonic() + _STOP_S_MAX
        for child in children:
            try:
                child.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    # What it shows

    def _introduce(self) -> None:
        from headgate.cli.output.demo import environment_file, introduction

        variables = {
            "HEADGATE_URL": self.url,
            "HEADGATE_ADMIN_URL": self.admin_url,
            "HEADGATE_ADMIN_KEY": self._operator_key,
            **self._variables,
        }
        file = self._folder / "env"
        file.touch(mode=0o600)
        file.write_text(environment_file(variables, str(Path(sys.executable).parent)))
        lines = ["headgate demo: ready", *introduction(self.access)]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _header(self) -> str:
        from headgate.cli.output.demo import commands_to_try

        return "\n".join([self._above(), *commands_to_try(self.access)])

    def _begin(self, seconds: float | None) -> None:
        """Traffic, from here on."""
        self._start_traffic("traffic", MIX, self._rate, seconds or _TRAFFIC_S, ("--patience", "30"))

    def _above(self) -> str:
        return f"console: {self.admin_url}/console/"

    def _tell_lines(self, seconds: float | None) -> int:
        """One line whenever there is something new to say."""
        until = None if seconds is None else time.monotonic() + seconds
        told = ("", "")
        while until is None or time.monotonic() < until:
            self._complain_of_the_dead("gateway")
            above, (matter, sentence) = self._above(), self._verdict()
            if (above, matter) != told:
                print(f"{above} | {sentence}", flush=True)
                told = above, matter
            time.sleep(1.0)
        return 0

    def _verdict(self) -> tuple[str, str]:
        """What the gateway says is the matter, the worst first: in a word, and in a sentence."""
        try:
            with urllib.request.urlopen(f"{self.admin_url}/verdict", timeout=_ASK_S_MAX) as answer:  # noqa: S310 (ours)
                found: dict[str, list[dict[str, str]]] = json.load(answer)
        except (OSError, ValueError):
            return "", "no verdict yet"
        for each in found.get("verdicts", ()):
            return each["incident"], f"{each['cause']}: {each['sentence']}"
        return "", "no verdict yet"

    # Its parts

    def _start_engines(self) -> None:
        for number in range(ENGINES):
            port = str(self._ports[number])
            self._start(f"engine-{number + 1}", "engine", "--profile", PROFILE, "--model", MODEL, "--port", port)

    def _start_traffic(
        self, name: str, mix: Sequence[str], rate: float, seconds: float, manners: Sequence[str]
    ) -> None:
        traffic = [part for each in mix for part in ("--mix", each)]
        lasting = ("--rate", f"{rate:g}", "--duration", f"{seconds:g}", "--exact-output")
        self._start(name, "loadtest", self.url, "--model", MODEL, *lasting, *manners, *traffic)

    def _start(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            # In a group of its own, so that Ctrl-C reaches the demo alone, which then ends its parts in order.
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
        from headgate.cli.top import ask

        until = time.monotonic() + _START_S_MAX
        while time.monotonic() < until:
            self._complain_of_the_dead()
            status = ask(self.admin_url)
            if status is not None and _ready(status) >= self._engines_first:
                return status
            time.sleep(0.1)
        raise DemoFailed(f"the engines were not ready within {_START_S_MAX:g} s:\n{self._log('gateway')}")

    @property
    def _engines_first(self) -> int:
        """With how many it begins."""
        return ENGINES

    def _complain_of_the_dead(self, *names: str) -> None:
        """Of these; of all, where none are named."""
        for name, child in self._children.items():
            if child.poll() is not None and (not names or name in names):
                raise DemoFailed(f"{name} ended with status {child.returncode}:\n{self._log(name)}")

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def _configuration(self) -> str:
        from headgate.wire.keys import digest, format_digest

        secret = self._environment[SECRET].encode()
        tenants = "\n".join(
            f'  {tenant}: {{keys: ["{format_digest(digest(secret, key))}"]}}' for tenant, key in self._keys.items()
        )
        operator = format_digest(digest(secret, self._operator_key))
        head = dedent(f"""\
            listen: 127.0.0.1:{self._ports[-2]}
            admin_listen: 127.0.0.1:{self._ports[-1]}
            drain_grace: 1s
            key_secret: ${{{SECRET}}}
            admin_keys: {{operator: {{key: "{operator}", permissions: [read, operate]}}}}
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
              long: {}
              batch: {}
            """


class IncidentDemo(Demo):
    """All is well, and then it is not."""

    def __init__(self, folder: Path, rate: float, incident: "Incident") -> None:
        from headgate.cli import demo_incidents

        self.tenants = demo_incidents.TENANTS
        super().__init__(folder, rate)
        self._known = demo_incidents
        self._incident = incident
        self._begins_at = 0.0
        self._seconds: float | None = None
        self._happens = False

    def _begin(self, seconds: float | None) -> None:
        self._begins_at = time.monotonic() + self._known.HEALTHY_S
        self._seconds = seconds
        self._start_traffic("traffic", self._known.USUAL, self._rate, seconds or _TRAFFIC_S, ("--patience", "30"))

    def _above(self) -> str:
        left_s = self._begins_at - time.monotonic()
        if left_s <= 0 and not self._happens:
            self._happens = True
            self._happen()
        if self._happens:
            state = f"incident: {self._incident.begins}"
        else:
            state = f"all is well; the gateway learns what is usual, the incident begins in {round(left_s, -1):.0f} s"
        return f"console: {self.admin_url}/console/ | {state}"

    def _happen(self) -> None:
        incident = self._incident
        if incident.instead:
            self._children["traffic"].send_signal(signal.SIGINT)
        if incident.rate:
            self._start_traffic("incident", incident.mix, incident.rate, self._seconds or _INCIDENT_S, incident.manners)
        if incident.hangs:
            self._children[incident.hangs].send_signal(signal.SIGSTOP)

    @property
    def _engines_first(self) -> int:
        return 2 if self._incident.cold_start_s else ENGINES

    def _start_engines(self) -> None:
        if self._incident.cold_start_s:
            return
        for number in range(ENGINES):
            port = str(self._ports[number])
            arguments = ("--profile", self._known.PROFILE, "--model", MODEL, "--port", port)
            self._start(f"engine-{number + 1}", "engine", *arguments)

    def _pool(self) -> str:
        return f"""\
            in_flight_max: {self._known.IN_FLIGHT_MAX}
            {self._fleet() if self._incident.cold_start_s else self._endpoints()}
            speed: {self._known.PROFILE}
            prices: {{per_hour: 12}}
            """

    def _fleet(self) -> str:
        """Engines that the gateway starts: the first at once, all further ones slowly."""
        engine = shlex.join([sys.executable, "-m", "headgate.cli.main", "engine", "--profile", self._known.PROFILE])
        slowly = f"[ {{slot}} -lt {self._engines_first} ] && cold=0 || cold={self._incident.cold_start_s:g}"
        shell = f"{slowly}; exec {engine} --model {{model}} --port {{port}} --cold-start $cold"
        command = json.dumps(["sh", "-c", shell])
        scaling = f"endpoints_min: {self._engines_first}, endpoints_max: 5, period: 5s, cold_start: 30s"
        logs = json.dumps(str(self._folder / "engines"))
        return (
            f"fleet: {{kind: processes, command: {command}, endpoints: {self._engines_first}, logs: {logs}}}\n"
            f"            scaling: {{{scaling}}}"
        )

    def _classes(self) -> str:
        return """\
            classes:
              interactive:
                ttft: 2s
                tpot: 75ms
                stage_budget: {queue: 500ms, prefill: 1s}
                objectives: {ttft_percent: 99, served_percent: 99}
              long: {}
              batch: {}
            """


def _new_key() -> str:
    return f"hg-{secrets.token_urlsafe(32)}"


def _ready(status: Mapping[str, Sequence[Mapping[str, object]]]) -> int:
    return sum(endpoint["state"] == "ready" for endpoint in status["endpoints"])


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, held open together so that all of them differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
