"""Configuration, incidents and output of `headgate demo`."""

import argparse
import io
import shlex
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import demo as demo_verb
from headgate.cli.demo import INCIDENTS as NAMES
from headgate.cli.demo import KEY_SECRET_VARIABLE, Demo, IncidentDemo
from headgate.cli.demo_incidents import HEALTHY_S, INCIDENTS, RATE
from headgate.cli.output.demo import summary
from headgate.config.load import load
from headgate.engines.dialects import DIALECTS
from headgate.loadtest.senders import TokenRange, parse_sender
from headgate.model.engine_profile import PROFILES
from headgate.wire.keys import digest


def a_demo(name: str | None, folder: Path) -> Demo:
    return Demo(folder, 12.0) if name is None else IncidentDemo(folder, RATE, INCIDENTS[name])


def sourced(file: Path) -> dict[str, str]:
    """Variables that an environment file sets."""
    assignments = (shlex.split(line)[1] for line in file.read_text().splitlines())
    return dict(each.split("=", 1) for each in assignments)


@pytest.mark.parametrize("name", [None, *NAMES])
def test_demo_configuration_is_valid(name: str | None, tmp_path: Path) -> None:
    demo = a_demo(name, tmp_path)
    file = tmp_path / "headgate.yaml"
    file.write_text(demo._configuration())
    settings = load(
        file, {KEY_SECRET_VARIABLE: demo._environment[KEY_SECRET_VARIABLE]}, engines=DIALECTS.keys(), profiles=PROFILES
    )

    assert settings.warnings == ()
    assert {tenant.id for tenant in settings.policy.tenants} == {*demo.tenants, "drill"}
    assert all(pool.prices for pool in settings.policy.pools), "the console shows what tenants spend"
    assert "interactive" in settings.stage_budgets


@pytest.mark.parametrize("name", NAMES)
def test_demo_tenants_have_keys(name: str, tmp_path: Path) -> None:
    demo, sizes = a_demo(name, tmp_path), TokenRange.parse("1")
    for text in INCIDENTS[name].mix:
        sender = parse_sender(text, demo._environment, prompt=sizes, output=sizes, key=None)
        assert sender.key in demo._keys.values()


class StartsNothing(IncidentDemo):
    """Demo that only records the processes it would start."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.started: list[str] = []

    def _start(self, name: str, *_: str) -> None:
        self.started.append(name)


def test_incident_starts_once_and_is_announced(tmp_path: Path) -> None:
    demo = StartsNothing(tmp_path, RATE, INCIDENTS["noisy-tenant"])
    demo._start_workload(None)
    assert f"the incident starts in {HEALTHY_S:.0f} s" in demo._status_line()
    assert demo.started == ["traffic"]

    demo._incident_at = 0.0
    assert demo._status_line() == demo._status_line()
    assert "tenant bolt sends" in demo._status_line()
    assert demo.started == ["traffic", "incident"]


class ShowsNothing(Demo):
    """Demo that only records whether it would show the live view."""

    views: list[bool]

    def show(self, seconds: float | None, *, view: bool) -> int:
        self.views.append(view)
        return 0


class Output(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def signals_kept() -> Iterator[None]:
    """Restores the signal handlers that a demo replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("terminal", "arguments", "view"), [(True, [], True), (True, ["--plain"], False), (False, [], False)]
)
@pytest.mark.usefixtures("signals_kept")
def test_live_view_requires_a_terminal(*, terminal: bool, arguments: list[str], view: bool) -> None:
    opened: list[ShowsNothing] = []

    def open_demo(_: argparse.Namespace, folder: Path) -> Demo:
        opened.append(demo := ShowsNothing(folder, 12.0))
        demo.views = []
        return demo

    parser = argparse.ArgumentParser()
    demo_verb.add_arguments(parser)
    with redirect_stdout(Output(terminal=terminal)):
        assert demo_verb.run(parser.parse_args(arguments), open_demo) == 0
    assert [demo.views for demo in opened] == [[view]]


class NamesItsEndpoints(StartsNothing):
    """Demo whose gateway has reported its endpoints."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self._first_status = {"endpoints": [{"id": "simulated/127.0.0.1:1"}], "uptime_s": 1.0}


def test_introduction_has_addresses_keys_and_working_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = NamesItsEndpoints(tmp_path, RATE, INCIDENTS["noisy-tenant"])
    demo._print_introduction()

    said, access = capsys.readouterr().err, demo.access
    for text in (access.url, access.admin_url, access.console, access.caller_key, access.operator_key):
        assert text in said
    assert access.commands == (
        "headgate operate drain simulated/127.0.0.1:1 --for 1m",
        "headgate doctor --live",
        f"headgate report --config {tmp_path / 'headgate.yaml'}",
        "headgate loadtest --url $HEADGATE_URL --model demo --rate 2 --api-key env:KEY_ACME",
    )
    variables = sourced(tmp_path / "env")
    assert variables["HEADGATE_ADMIN_KEY"] == access.operator_key
    assert variables["HEADGATE_ADMIN_URL"] == access.admin_url
    assert variables["KEY_ACME"] == access.caller_key
    assert (tmp_path / "env").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", [None, *NAMES])
def test_demo_environment_file_has_the_variables_that_its_configuration_needs(name: str | None, tmp_path: Path) -> None:
    demo = a_demo(name, tmp_path)
    demo._print_introduction()
    demo._configuration_file.write_text(demo._configuration())

    assert load(demo._configuration_file, sourced(tmp_path / "env"), engines=DIALECTS.keys(), profiles=PROFILES)


def test_demo_operator_may_read_operate_and_record(tmp_path: Path) -> None:
    demo = a_demo(None, tmp_path)
    file = tmp_path / "headgate.yaml"
    file.write_text(demo._configuration())
    [key] = load(
        file, {KEY_SECRET_VARIABLE: demo._environment[KEY_SECRET_VARIABLE]}, engines=DIALECTS.keys(), profiles=PROFILES
    ).admin_keys

    assert key.digest == digest(demo._environment[KEY_SECRET_VARIABLE].encode(), demo.access.operator_key)
    assert key.permissions == ("read", "operate", "record")


def test_summary_counts_requests_that_have_ended_since_the_start() -> None:
    def status(uptime_s: float, completed: int) -> dict[str, Any]:
        classes = {"batch": {"ended": {"completed": completed, "queue_full": completed // 4}}}
        return {
            "uptime_s": uptime_s,
            "queued": {"batch": 3},
            "counted": {"classes": classes, "latency_bounds_s": [1.0]},
        }

    first, *_, counts, _, endings = summary(status(5.0, 0), status(25.0, 80))

    assert first == "Summary of 20 s, measured by the gateway:"
    assert counts.split()[:5] == ["batch", "3", "5.0", "80", "%"]
    assert endings == "outcomes, last 20 s: completed 80  queue_full 20"
