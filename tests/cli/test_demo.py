"""Is every demo set up so that its gateway starts, and does its incident do what it says?"""

import argparse
import signal
import sys
from pathlib import Path

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


def test_an_incident_begins_once_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = IncidentDemo(tmp_path, RATE, INCIDENTS["noisy-tenant"])
    started: list[str] = []
    monkeypatch.setattr(demo, "_start", lambda name, *_: started.append(name))
    demo._begin(None)
    assert f"the incident begins in {HEALTHY_S:.0f} s" in demo._above()
    assert started == ["traffic"]

    demo._begins_at = 0.0
    assert demo._above() == demo._above()
    assert "tenant bolt asks for" in demo._above()
    assert started == ["traffic", "incident"]


@pytest.mark.parametrize(
    ("terminal", "arguments", "view"), [(True, [], True), (True, ["--no-view"], False), (False, [], False)]
)
def test_frames_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, arguments: list[str], view: bool
) -> None:
    shown: list[bool] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setattr(Demo, "show", lambda _demo, _seconds, *, view: shown.append(view) or 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    parser = argparse.ArgumentParser()
    demo_verb.add_arguments(parser)

    assert demo_verb.run(parser.parse_args(arguments)) == 0
    assert shown == [view]
