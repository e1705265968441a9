"""The systemd unit is valid and confines the process."""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headgate.cli.main import main
from headgate.config import quantities
from headgate.model.units import SECOND
from tests.deploy.manifests import DEPLOY, gateway_config
from tests.house.small_tree import BIN

UNIT = DEPLOY / "systemd/headgate.service"
WORKERS = DEPLOY / "systemd/headgate.service.d/workers.conf"
EXPOSURE_MAX = 2.0
"""Highest acceptable `systemd-analyze security` exposure level, out of 10. An unconfined service scores about 9.5."""


def settings(file: Path = UNIT) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(file)
    return dict(parser["Service"])


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Copy of the unit with the program's path on this machine."""
    text = UNIT.read_text().replace("/usr/local/lib/headgate/bin/headgate", str(BIN / "headgate"))
    (tmp_path / UNIT.name).write_text(text)
    return tmp_path / UNIT.name


def analyze(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    tool = shutil.which("systemd-analyze")
    if tool is None and "CI" not in os.environ:
        pytest.skip("systemd-analyze is not installed; run apt-get install systemd")
    assert tool is not None, "systemd-analyze is not installed; run apt-get install systemd"
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.process
def test_unit_passes_systemd_verification(installed: Path) -> None:
    done = analyze("verify", "--man=no", installed)
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]

    assert (done.returncode, about_it) == (0, [])


@pytest.mark.process
def test_systemd_verification_reports_a_misspelled_setting(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("ProtectHome=yes", "ProtectHomes=yes"))

    assert re.search("Unknown key .*'ProtectHomes'", analyze("verify", "--man=no", installed).stderr)


@pytest.mark.process
def test_unit_exposure_is_below_the_limit(installed: Path) -> None:
    said = analyze("security", "--offline=yes", "--no-pager", installed).stdout
    [exposure] = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)

    assert float(exposure) <= EXPOSURE_MAX, said


@pytest.mark.process
def test_unit_with_workers_passes_systemd_verification(installed: Path) -> None:
    folder = installed.parent / WORKERS.parent.name
    folder.mkdir()
    text = WORKERS.read_text().replace("/usr/local/lib/headgate/bin/headgate", str(BIN / "headgate"))
    (folder / WORKERS.name).write_text(text)
    done = analyze("verify", "--man=no", installed)
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line or WORKERS.name in line]

    assert (done.returncode, about_it) == (0, [])


def test_stop_timeout_covers_the_drain_grace() -> None:
    grace_ns = quantities.duration(gateway_config()["drain_grace"])

    assert settings()["KillMode"] == "mixed"
    assert int(settings()["TimeoutStopSec"]) * SECOND >= grace_ns + 5 * SECOND


@pytest.mark.parametrize("file", [UNIT, WORKERS])
def test_unit_command_is_valid(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, *arguments = settings(file)["ExecStart"].split()

    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "/etc/headgate/headgate.yaml" in said
    assert "usage" not in said
