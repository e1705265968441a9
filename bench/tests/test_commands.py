"""Tests that the benchmark commands start their processes, report missing parts and clean up."""

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

from bench import engine_throughput, relay_overhead, scheduler_speed
from bench.baseline_proxies import PROXIES, BaselineProxy, check_installed, find_nginx, running_proxy
from bench.compare_speed import __main__ as compare_speed
from bench.compare_speed.ratios import FIGURES
from bench.cpu_cores import family_of
from bench.instructions import __main__ as instructions
from bench.targets import gateway, upstream
from testing.envoy import envoy_command
from testing.processes import MissingProgram

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "project" / "performance.md").read_text()


@pytest.mark.process
async def test_gateway_is_started_with_required_key(tmp_path: Path) -> None:
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
def test_failing_gateway_command_is_reported_with_next_step(tmp_path: Path) -> None:
    with pytest.raises(MissingProgram, match="check --gateway-command"):
        with gateway(0, "http://127.0.0.1:1", tmp_path / "gateway", command=["false"]):
            pass


def test_missing_nginx_is_reported_with_install_command() -> None:
    with pytest.raises(MissingProgram, match="apt-get install nginx-light"):
        find_nginx(lambda *_, **__: None)


def test_missing_envoy_is_reported_with_install_command(tmp_path: Path) -> None:
    missing = BaselineProxy("envoy", "", lambda file: envoy_command(file, tmp_path / "envoy"))

    with pytest.raises(MissingProgram, match="run scripts/setup"):
        check_installed([missing])


@pytest.mark.process
@pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.name)
async def test_baseline_proxy_relays_requests_on_its_core(proxy: BaselineProxy, tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with upstream(core) as behind, running_proxy(proxy, core, behind.port, tmp_path / proxy.name) as target:
        body = {"model": target.model, "messages": [{"role": "user", "content": "Hi"}]}
        async with aiohttp.ClientSession() as http:
            async with http.post(f"http://127.0.0.1:{target.port}/v1/chat/completions", json=body) as answer:
                assert (answer.status, (await answer.json())["object"]) == (200, "chat.completion")
        assert [os.sched_getaffinity(pid) for pid in target.pids] == [{core}] * len(target.pids)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_benchmark_leaves_no_process_running(number: int, tmp_path: Path) -> None:
    stand_in = tmp_path / "nginx"
    # The relay benchmark is stopped while it is measuring the upstream directly, so nginx only needs to respond until
    # then.
    stand_in.write_text(f"#!{sys.executable}\n" + STAND_IN)
    stand_in.chmod(0o755)
    with subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, "-m", "bench.relay_overhead", "--seconds", "60"],
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
"""Prefix that restores SIGINT: a shell that starts pytest in the background makes it and its children ignore SIGINT."""

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
    """Return all processes started so far, once the load generator is among them."""
    while True:
        found = family_of(pid)
        if any("bench.load_generator" in command_of(each) for each in found):
            return found
        assert is_running(pid), "the benchmark exited before it measured anything"
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
    """Return the processes still running after the timeout. Killed grandchildren exit shortly after their parents."""
    until = time.monotonic() + seconds_max
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def test_performance_page_documents_every_option_and_result() -> None:
    options = {
        option
        for command in (relay_overhead, engine_throughput, scheduler_speed, compare_speed, instructions)
        for action in command.parser()._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) == options - {"--help"}
    figures = [*relay_overhead.FIGURES, *(figure.name for figure in FIGURES)]
    assert [figure for figure in figures if f"`{figure}`" not in PAGE] == []


def test_performance_page_examples_are_json_of_results() -> None:
    lines = [json.loads(line) for line in PAGE.splitlines() if line.startswith("{")]

    assert [list(line) for line in lines] == [
        list(relay_overhead.FIGURES),
        ["direct_tokens_per_s", "gateway_tokens_per_s", "ratio", "ci_low", "ci_high"],
    ]
