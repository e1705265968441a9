"""Do the benchmarks start what they need, say what is missing, and leave nothing behind?"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from bench import core, engine, relay
from bench.cores import family_of
from bench.targets import find_nginx, gateway, upstream
from testing.processes import MissingPart

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "project" / "performance.md").read_text()


@pytest.mark.process
async def test_the_gateway_is_started_with_a_key_that_it_asks_for(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with upstream(core) as behind, gateway(core, f"http://127.0.0.1:{behind.port}", tmp_path / "gateway") as target:
        body = {"model": target.model, "messages": [{"role": "user", "content": "Hi"}]}
        async with aiohttp.ClientSession() as http:
            statuses = []
            for key in (target.key, "another"):
                url, headers = f"http://127.0.0.1:{target.port}/v1/chat/completions", {"authorization": f"Bearer {key}"}
                async with http.post(url, json=body, headers=headers) as answer:
                    statuses.append(answer.status)

    assert statuses == [200, 401]


@pytest.mark.process
def test_a_gateway_command_that_fails_is_told_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match="correct --gateway-command"):
        with gateway(0, "http://127.0.0.1:1", tmp_path / "gateway", command=["false"]):
            pass


def test_without_nginx_it_is_told_how_to_get_it() -> None:
    with pytest.raises(MissingPart, match="apt-get install nginx-light"):
        find_nginx(lambda *_, **__: None)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_that_is_interrupted_leaves_nothing_running(number: int, tmp_path: Path) -> None:
    stand_in = tmp_path / "nginx"
    # The relay benchmark is stopped while it measures the bare upstream; all that nginx must do is answer until then.
    stand_in.write_text(f"#!{sys.executable}\n" + STAND_IN)
    stand_in.chmod(0o755)
    with subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, "-m", "bench.relay", "--seconds", "60"],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        started = family_when_measuring(process.pid)
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)

    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert said == b""
    assert still_running(started) == []


INTERRUPTIBLE = ("env", "--default-signal=INT")
"""A shell that starts pytest in the background makes it, and all that it starts, ignore SIGINT."""

STAND_IN = """\
import re, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
text = open(sys.argv[sys.argv.index("-c") + 1]).read()
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
HTTPServer(("127.0.0.1", int(re.search(r"listen 127.0.0.1:(\\d+)", text)[1])), Answer).serve_forever()
"""


def family_when_measuring(pid: int) -> list[int]:
    """All that it has started, once its load generator is among them."""
    while True:
        found = family_of(pid)
        if any("bench.generator" in command_of(each) for each in found):
            return found
        assert is_running(pid), "it ended before it measured anything"
        time.sleep(0.05)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def still_running(pids: Sequence[int], *, seconds_max: float = 60.0) -> list[int]:
    """Those that have not ended in time: a killed child of a child is gone a moment after its parent."""
    until = time.monotonic() + seconds_max
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def test_the_page_names_every_option_and_figure() -> None:
    options = {
        option
        for parser in (relay.parser(), engine.parser(), core.parser())
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) == options - {"--help"}
    assert [figure for figure in relay.FIGURES if f"`{figure}`" not in PAGE] == []


def test_the_pages_example_lines_are_json_of_the_figures() -> None:
    lines = [json.loads(line) for line in PAGE.splitlines() if line.startswith("{")]

    assert [list(line) for line in lines] == [
        list(relay.FIGURES),
        ["direct_tokens_per_s", "gateway_tokens_per_s", "ratio", "ci_low", "ci_high"],
    ]
