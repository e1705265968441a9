"""The demo shows Headgate under load within a minute on a machine without a GPU."""

import re
import subprocess
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SESSION = "headgate-demo-test"

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(300)]


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", "-L", SESSION, *arguments], capture_output=True, text=True, check=True).stdout


def screen() -> str:
    return tmux("capture-pane", "-p", "-t", SESSION)


def screen_with(pattern: str, *, seconds_max: float) -> str:
    """The first screen that matches the pattern."""
    until = time.monotonic() + seconds_max
    while not re.search(pattern, found := screen(), re.MULTILINE):
        assert time.monotonic() < until, f"no {pattern!r} within {seconds_max:.0f} s on:\n{found}"
        time.sleep(0.05)
    return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[None]:
    """A terminal that is closed after the test. No demo process may survive it."""
    before = verbs_running()
    tmux("new-session", "-d", "-s", SESSION, "-x", "110", "-y", "30", "-c", str(tmp_path))
    yield
    tmux("kill-server")
    until = time.monotonic() + 20
    while left := verbs_running() - before:
        assert time.monotonic() < until, f"processes survived the closed terminal: {left}"
        time.sleep(0.05)


def test_demo_shows_live_view_within_a_minute_in_fresh_environment(tmp_path: Path, terminal: None) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    started = time.monotonic()
    tmux(
        "send-keys",
        "-t",
        SESSION,
        f"{tmp_path}/env/bin/pip install -q {ROOT} && {tmp_path}/env/bin/headgate demo",
        "Enter",
    )
    first = screen_with(r"^interactive .* \d+ ms", seconds_max=240)
    took = time.monotonic() - started
    second = screen_with(r"up 0:00:(1[5-9]|[2-5]\d) ", seconds_max=60)

    assert first != second, "the view does not change"
    assert took < 60
    classes = {
        line.split()[0]: line for line in second.splitlines() if line.startswith(("interactive", "long", "batch"))
    }
    assert set(classes) == {"interactive", "long", "batch"}
    assert len(re.findall(r"^simulated/\S+ +ready ", second, re.MULTILINE)) == 3
    assert re.search(r"^outcomes, last \d+ s: completed \d+", second, re.MULTILINE)

    # At twice the sustainable load, interactive requests are served while batch requests wait.
    crowded = screen_with(r"^batch +[1-9]\d+ ", seconds_max=60)
    served = re.search(r"^interactive +\d+ +[\d.]+ +(\d+) %", crowded, re.MULTILINE)
    assert served is not None, crowded
    assert int(served[1]) >= 95, crowded


def test_demo_leaves_no_process_running(tmp_path: Path, terminal: None) -> None:
    before = verbs_running()
    tmux("send-keys", "-t", SESSION, f"{ROOT}/.venv/bin/headgate demo; echo exit status $?", "Enter")
    screen_with(r"^interactive .* \d+ ms", seconds_max=60)
    assert len(verbs_running() - before) == 5

    tmux("send-keys", "-t", SESSION, "C-c", "")
    screen_with(r"^exit status 0$", seconds_max=30)
    assert verbs_running() - before == set()


def verbs_running() -> set[str]:
    """Processes that a demo starts: three engines, a gateway and a load test."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return {line for line in found.splitlines() if "-m headgate.cli.main" in line}
