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
from headgate.config.load import load
from headgate.engines.dialects import DIALECTS
from headgate.loadtest.senders import Sizes, parse_sender
from headgate.model.engine_profile import PROFILES


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
