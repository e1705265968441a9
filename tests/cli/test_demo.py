"""Is every demo set up so that its gateway starts, and does its incident do what it says?"""

import argparse
import io
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import demo as demo_verb
from headgate.cli.demo import INCIDENTS as NAMES
from headgate.cli.demo import SECRET, Demo, IncidentDemo
from headgate.cli.demo_incidents import HEALTHY_S, INCIDENTS, RATE
from headgate.cli.output.demo import summary
from headgate.config.load import load
from headgate.engines.dialects import DIALECTS
from headgate.loadtest.senders import Sizes, parse_sender
from headgate.model.engine_profile import PROFILES
from headgate.wire.keys import digest


def a_demo(name: str | None, folder: Path) -> Demo:
    return Demo(folder, 12.0) if name is None else IncidentDemo(folder, RATE, INCIDENTS[name])


@pytest.mark.parametrize("name", [None, *NAMES])
def test_its_configuration_is_right(name: str | None, tmp_path: Path) -> None:
    demo = a_demo(name, tmp_path)
    file = tmp_path / "headgate.yaml"
    file.write_text(demo._configuration())
    settings = load(file, {SECRET: demo._environment[SECRET]}, engines=DIALECTS.keys(), profiles=PROFILES)

    assert settings.warnings == ()
    assert {tenant.id for tenant in settings.policy.tenants} == set(demo.tenants)
    assert all(pool.prices for pool in settings.policy.pools), "the console shows what tenants spend"
    assert "interactive" in settings.stage_budgets


@pytest.mark.parametrize("name", NAMES)
def test_its_callers_have_keys(name: str, tmp_path: Path) -> None:
    demo, sizes = a_demo(name, tmp_path), Sizes.parse("1")
    for text in INCIDENTS[name].mix:
        sender = parse_sender(text, demo._environment, prompt=sizes, output=sizes, key=None)
        assert sender.key in demo._keys.values()


class StartsNothing(IncidentDemo):
    """A demo that only notes what it would start."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.started: list[str] = []

    def _start(self, name: str, *_: str) -> None:
        self.started.append(name)


def test_an_incident_begins_once_and_says_so(tmp_path: Path) -> None:
    demo = StartsNothing(tmp_path, RATE, INCIDENTS["noisy-tenant"])
    demo._begin(None)
    assert f"the incident begins in {HEALTHY_S:.0f} s" in demo._above()
    assert demo.started == ["traffic"]

    demo._begins_at = 0.0
    assert demo._above() == demo._above()
    assert "tenant bolt asks for" in demo._above()
    assert demo.started == ["traffic", "incident"]


class ShowsNothing(Demo):
    """A demo that only notes whether it would show frames."""

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
    """Puts back the signal handlers that a demo replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("terminal", "arguments", "view"), [(True, [], True), (True, ["--no-view"], False), (False, [], False)]
)
@pytest.mark.usefixtures("signals_kept")
def test_frames_are_for_terminals(*, terminal: bool, arguments: list[str], view: bool) -> None:
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
    """A demo whose gateway has reported the names of its endpoints."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self._first = {"endpoints": [{"id": "simulated/127.0.0.1:1"}], "uptime_s": 1.0}


def test_the_introduction_has_addresses_keys_and_three_commands_that_work_as_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = NamesItsEndpoints(tmp_path, RATE, INCIDENTS["noisy-tenant"])
    demo._introduce()

    said, access = capsys.readouterr().err, demo.access
    for text in (access.url, access.admin_url, access.console, access.caller_key, access.operator_key):
        assert text in said
    assert access.commands == (
        "headgate operate drain simulated/127.0.0.1:1 --for 1m",
        "headgate doctor --live",
        "headgate loadtest $HEADGATE_URL --model demo --rate 2 --key env:KEY_ACME",
    )
    variables = dict(line.removeprefix("export ").split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert variables["HEADGATE_ADMIN_KEY"] == access.operator_key
    assert variables["HEADGATE_ADMIN_URL"] == access.admin_url
    assert variables["KEY_ACME"] == access.caller_key
    assert (tmp_path / "env").stat().st_mode & 0o777 == 0o600


def test_the_operator_of_a_demo_may_read_and_operate(tmp_path: Path) -> None:
    demo = a_demo(None, tmp_path)
    file = tmp_path / "headgate.yaml"
    file.write_text(demo._configuration())
    [key] = load(file, {SECRET: demo._environment[SECRET]}, engines=DIALECTS.keys(), profiles=PROFILES).admin_keys

    assert key.digest == digest(demo._environment[SECRET].encode(), demo.access.operator_key)
    assert key.permissions == ("read", "operate")


def test_summary_counts_requests_that_ended_since_the_start() -> None:
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
    assert endings == "endings, last 20 s: completed 80  queue_full 20"
