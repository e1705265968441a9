"""Checks of the container image: its user, its contents, and scenarios of a gateway with a simulated engine."""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
import yaml

from scripts.image.build import ImageError, podman, size_mb
from scripts.image.containers import Containers

USER = "10001:10001"
FIRST_ANSWER_S_MAX = 60.0
_CONFIG = "/etc/headgate/headgate.yaml"
_ENGINE, _GATEWAY = "http://127.0.0.1:8081", "http://127.0.0.1:8080"
_SPEED = "0.1"
"""Engine speed at which the longest stream takes a few seconds."""
_LONG_STREAM_TOKENS = 400
_TEXT = re.compile(r'^data: .*"content":"[^"]')


@dataclass
class ImageCheck:
    """Scenarios in their order. Later scenarios use the containers of earlier ones."""

    image: str
    version: str
    containers: Containers
    config: Path
    first_answer_s: float | None = None

    def scenarios(self) -> Mapping[str, Callable[[], None]]:
        return {
            "image configuration": self.image_configuration,
            "quickstart to the first streamed response": self.quickstart,
            "user, read-only root and extras": self.contents,
            "health check": self.health_check,
            "commands check, doctor and status": self.commands,
            "reload on SIGHUP": self.reload,
            "TLS and tracing": self.tls_and_tracing,
            "SIGTERM during a stream": self.drain,
            "demo": self.demo,
        }

    def image_configuration(self) -> None:
        [found] = json.loads(podman("image", "inspect", self.image))
        settings = found["Config"]
        expect("user", settings["User"], USER)
        expect("entrypoint", settings["Entrypoint"], ["headgate"])
        expect("command", settings["Cmd"], ["serve", "--config", _CONFIG, "--log-format", "json"])
        expect("stop signal", settings["StopSignal"], "SIGTERM")
        expect("ports", sorted(settings["ExposedPorts"]), ["8080/tcp", "9090/tcp", "9091/tcp"])
        if "127.0.0.1:9090/health" not in " ".join(found.get("HealthCheck", found.get("Healthcheck"))["Test"]):
            raise ImageError("the image has no health check")

    def quickstart(self) -> None:
        started = time.monotonic()
        self.containers.start("engine", "engine", "--model", "smollm2", "--port", "8081", "--speed-up", _SPEED)
        self.containers.wait_for_log("engine", "8081")
        self.containers.run("init", "init", "--from", _ENGINE, "--config", _CONFIG, config="rw")
        self.containers.start("gateway")
        self.containers.wait_until_healthy("gateway")
        with self.containers.streaming("engine", "stream", _GATEWAY, "12") as client:
            lines = []
            for line in client.stdout or ():
                lines.append(line)
                if self.first_answer_s is None and _TEXT.match(line):
                    self.first_answer_s = round(time.monotonic() - started, 1)
        if self.first_answer_s is None or "data: [DONE]\n" not in lines:
            raise ImageError(f"the stream is not complete:\n{''.join(lines)}")

    def contents(self) -> None:
        facts: dict[str, Any] = json.loads(self.containers.program("gateway", "inspect_image"))
        expect("user", facts["user"], USER)
        expect("supplementary groups", [group for group in facts["groups"] if group != 10001], [])
        expect("writable directories", facts["writable"], ["/tmp"])  # noqa: S108 - inside the container
        expect("leftovers of the build", facts["leftovers"], [])
        expect("build tools", facts["build_tools"], [])
        if not facts["extras"]:
            raise ImageError("the installed package has no extras")
        expect("packages that cannot be imported", {name: each for name, each in facts["extras"].items() if each}, {})

    def health_check(self) -> None:
        if not self.containers.is_healthy("gateway"):
            raise ImageError("the health check fails in a running gateway")
        # This container has its own network, in which no gateway listens.
        with Containers(self.image, self.config) as alone:
            alone.start("sleeping", "-c", "import signal; signal.pause()", python=True)
            if alone.is_healthy("sleeping"):
                raise ImageError("the health check succeeds without a gateway")

    def commands(self) -> None:
        expect("version", self.containers.execute("gateway", "headgate", "--version").split()[1], self.version)
        for command in ("check", "status"):
            self.containers.execute("gateway", "headgate", command, "--config", _CONFIG)
        doctor = json.loads(
            self.containers.execute("gateway", "headgate", "doctor", "--live", "--json", "--config", _CONFIG)
        )
        if not doctor:
            raise ImageError("headgate doctor --live --json prints nothing")

    def reload(self) -> None:
        settings = yaml.safe_load((self.config / "headgate.yaml").read_text())
        settings["models"]["added"] = settings["models"]["smollm2"]
        self._write(settings, "headgate.yaml")
        self.containers.signal("gateway", "HUP")
        give_up_at = time.monotonic() + 30
        while '"added"' not in (models := self._models()):
            if time.monotonic() > give_up_at:
                raise ImageError(f"the reloaded gateway does not list the new model: {models}")
            time.sleep(0.1)

    def _models(self) -> str:
        read = f"import urllib.request as r; print(r.urlopen('{_GATEWAY}/v1/models', timeout=5).read().decode())"
        return self.containers.execute("engine", "python", "-c", read)

    def _write(self, settings: object, name: str) -> None:
        new = self.config / f".{name}"
        new.write_text(yaml.safe_dump(settings))
        new.chmod(0o644)
        new.replace(self.config / name)

    def tls_and_tracing(self) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(str(self.config / "ca.crt"))
        issued.cert_chain_pems[0].write_to_path(str(self.config / "tls.crt"))
        issued.private_key_pem.write_to_path(str(self.config / "tls.key"))
        for name in ("ca.crt", "tls.crt", "tls.key"):
            (self.config / name).chmod(0o644)
        certificate = {"certificate": "tls.crt", "key": "tls.key"}
        settings = yaml.safe_load((self.config / "headgate.yaml").read_text()) | {
            "listen": "127.0.0.1:8443",
            "listen_tls": certificate,
            "admin_listen": "127.0.0.1:9443",
            "tracing": {"endpoint": "http://127.0.0.1:4318", "sample_percent": 100},
        }
        self._write(settings, "secure.yaml")
        self.containers.start("collector", "/checks/collect_traces.py", python=True)
        self.containers.wait_for_log("collector", "listening")
        self.containers.start("secure", "serve", "--config", "/etc/headgate/secure.yaml", "--log-format", "json")
        self.containers.wait_for_log("secure", "8443")
        arguments = ("https://127.0.0.1:8443", "4", "/etc/headgate/ca.crt")
        output = self.containers.program("engine", "stream", *arguments)
        if "data: [DONE]" not in output:
            raise ImageError(f"the stream over TLS is not complete:\n{output}")
        self.containers.wait_for_log("collector", output.split()[1])
        self.containers.signal("secure", "TERM")
        expect("exit status of the gateway with TLS", self.containers.exit_status("secure"), 0)

    def drain(self) -> None:
        with self.containers.streaming("engine", "stream", _GATEWAY, str(_LONG_STREAM_TOKENS)) as client:
            lines, at_signal = [], 0
            for line in client.stdout or ():
                lines.append(line)
                if not at_signal and _TEXT.match(line):
                    self.containers.signal("gateway", "TERM")
                    at_signal = len(lines)
        texts = sum(1 for line in lines if _TEXT.match(line))
        if texts < _LONG_STREAM_TOKENS or "data: [DONE]\n" not in lines:
            raise ImageError(f"{texts} of {_LONG_STREAM_TOKENS} tokens arrived:\n{''.join(lines[-5:])}")
        expect("exit status of the gateway", self.containers.exit_status("gateway"), 0)
        if "data: [DONE]\n" in lines[:at_signal]:
            raise ImageError("the stream ended before SIGTERM")

    def demo(self) -> None:
        output = self.containers.run("demo", "demo", "--plain", "--seconds", "5")
        if "interactive" not in output:
            raise ImageError(f"headgate demo printed:\n{output}")


def expect(subject: str, found: object, expected: object) -> None:
    if found != expected:
        raise ImageError(f"{subject}: {found!r} instead of {expected!r}")


def check_image(image: str, version: str) -> dict[str, float | int | None]:
    """Run all scenarios with an image of this version and return the figures."""
    with tempfile.TemporaryDirectory(prefix="headgate-image-") as name:
        config = Path(name) / "config"
        config.mkdir()
        # `headgate init` writes a file here as the user of the image.
        config.chmod(0o777)
        with Containers(image, config) as containers:
            check = ImageCheck(image, version, containers, config)
            scenarios = check.scenarios()
            failed = run_scenarios(scenarios)
    return {
        "size_mb": size_mb(image),
        "first_answer_s": check.first_answer_s,
        "scenarios": len(scenarios),
        "failed": failed,
    }


def run_scenarios(scenarios: Mapping[str, Callable[[], None]]) -> int:
    """Run all scenarios, print each result and return the number of failures."""
    failed = 0
    for subject, run in scenarios.items():
        started = time.monotonic()
        try:
            run()
            result = "passed"
        except (ImageError, LookupError, OSError, TypeError, ValueError) as error:
            failed += 1
            result = "FAILED"
            print(f"image: {subject}: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"{time.monotonic() - started:>8.1f} s  {result}  {subject}", flush=True)
    return failed
