"""What does Headgate look like under pressure, on a laptop without a GPU?

A gateway, three simulated engines and more traffic than they can carry, each a process of its own
started from the very verbs that a user would type, and the live view of it all. Two tenants share
the interactive class, one of them three times as busy; long prompts and a flood of batch work come
on top. What to look for: interactive first tokens stay quick while batch work waits.
"""

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

ENGINES = 3
PROFILE = "rtxpro6000-llama-8b"
MODEL = "demo"
TENANTS = ("acme", "bolt", "nightly")
SECRET = "HEADGATE_KEY_SECRET"

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
_FOR_EVER_S = 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=RATE, help=f"requests a second over all callers ({RATE:g})")
    parser.add_argument("--seconds", type=float, help="end by itself after so long; else with Ctrl-C")


def run(args: argparse.Namespace) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        # A terminal that is closed ends the demo as Ctrl-C does, with all that it started.
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
        demo = Demo(Path(folder))
        try:
            return demo.show(args.rate, args.seconds)
        except KeyboardInterrupt:
            return 0
        except DemoFailed as failure:
            print(f"headgate demo: {failure}", file=sys.stderr)
            return 1
        finally:
            demo.stop()


class DemoFailed(Exception):
    """A part of the demo did not come up; the message says which, and what it said."""


class Demo:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = _free_ports(ENGINES + 2)
        self._keys = {tenant: f"hg-{secrets.token_urlsafe(32)}" for tenant in TENANTS}
        self._environment = {
            **os.environ,
            SECRET: secrets.token_urlsafe(32),
            **{f"KEY_{tenant.upper()}": key for tenant, key in self._keys.items()},
        }

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[-1]}"

    def show(self, rate: float, seconds: float | None) -> int:
        from headgate.cli.top import watch

        print("headgate demo: starting three simulated engines and a gateway", file=sys.stderr)
        for number in range(ENGINES):
            port = str(self._ports[number])
            self._start(f"engine-{number + 1}", "engine", "--profile", PROFILE, "--model", MODEL, "--port", port)
        file = self._folder / "headgate.yaml"
        file.write_text(self._configuration())
        self._start("gateway", "serve", str(file))
        self._wait_until_ready()
        traffic = [part for mix in MIX for part in ("--mix", mix)]
        lasting = ("--rate", f"{rate:g}", "--duration", f"{seconds or _FOR_EVER_S:g}")
        clients = ("--patience", "30", "--exact-output")
        url = f"http://127.0.0.1:{self._ports[-2]}"
        self._start("traffic", "loadtest", url, "--model", MODEL, *lasting, *clients, *traffic)
        return watch(self.admin_url, seconds=seconds)

    def stop(self) -> None:
        """Ends what was started, the last first, and by its process id alone."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        children = list(self._children.values())[::-1]
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        until = time.monotonic() + _STOP_S_MAX
        for child in children:
            try:
                child.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

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

    def _wait_until_ready(self) -> None:
        """Until the gateway has found every engine ready."""
        from headgate.cli.top import ask

        until = time.monotonic() + _START_S_MAX
        while time.monotonic() < until:
            self._complain_of_the_dead()
            status = ask(self.admin_url)
            if status is not None and _ready(status) == ENGINES:
                return
            time.sleep(0.1)
        raise DemoFailed(f"the engines were not ready within {_START_S_MAX:g} s:\n{self._log('gateway')}")

    def _complain_of_the_dead(self) -> None:
        for name, child in self._children.items():
            if child.poll() is not None:
                raise DemoFailed(f"{name} ended with status {child.returncode}:\n{self._log(name)}")

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def _configuration(self) -> str:
        from headgate.wire.keys import digest, format_digest

        secret = self._environment[SECRET].encode()
        endpoints = ", ".join(f'"http://127.0.0.1:{port}"' for port in self._ports[:ENGINES])
        tenants = "\n".join(
            f'  {tenant}: {{keys: ["{format_digest(digest(secret, key))}"]}}' for tenant, key in self._keys.items()
        )
        head = dedent(f"""\
            listen: 127.0.0.1:{self._ports[-2]}
            admin_listen: 127.0.0.1:{self._ports[-1]}
            drain_grace: 1s
            key_secret: ${{{SECRET}}}
            pools:
              simulated:
                engine: vllm
                served_model: {MODEL}
                in_flight_max: 12
                endpoints: [{endpoints}]
                speed: {PROFILE}
            models:
              {MODEL}: simulated
            classes:
              interactive: {{ttft: 2s, tpot: 100ms}}
              long: {{}}
              batch: {{}}
            tenants:
            """)
        return f"{head}{tenants}\n"


def _ready(status: Mapping[str, Sequence[Mapping[str, object]]]) -> int:
    return sum(endpoint["state"] == "ready" for endpoint in status["endpoints"])


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, held open together so that all of them differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
