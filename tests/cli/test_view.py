"""Screen of `headgate top`."""

import os
import pty
import sys
import termios
from contextlib import suppress

import pytest

from headgate.cli.output.top_screen import quantile, screen
from headgate.cli.top import TopScreen
from testing.ports import free_port

BOUNDS = [0.1, 1.0, 10.0]


def a_status(**changes: object) -> dict[str, object]:
    counted = {"ended": {}, "output_tokens": 0, **{what: [0, 0, 0, 0] for what in HISTOGRAMS}}
    status: dict[str, object] = {
        "version": "1.2.3",
        "config_hash": "abc",
        "reload_problems": [],
        "uptime_s": 100.0,
        "draining": False,
        "requests_open": 3,
        "queued": {"interactive": 2},
        "counted": {"latency_bounds_s": BOUNDS, "classes": {"none": counted, "interactive": counted}},
        "endpoints": [
            {"id": "p/a", "state": "ready", "leaving": False, "in_flight": 5, "in_flight_max": 10},
            {"id": "p/b", "state": "ejected", "leaving": False, "in_flight": 0, "in_flight_max": 10},
        ],
        "engines": [
            {"endpoint_id": "p/a", "telemetry": {"running": 5, "waiting": 1, "kv_used_fraction": 0.25}},
            {"endpoint_id": "p/b", "telemetry": {"running": None, "waiting": None, "kv_used_fraction": None}},
        ],
    }
    return status | changes


HISTOGRAMS = ("queue_wait", "time_to_first_token", "inter_token_latency", "duration")


def later() -> dict[str, object]:
    """Status ten seconds later: 20 requests ended, half of them served with first tokens between 0.1 and 1 s."""
    interactive = {
        "ended": {"completed": 10, "queue_full": 10},
        "output_tokens": 500,
        "queue_wait": [10, 0, 0, 0],
        "time_to_first_token": [0, 10, 0, 0],
        "inter_token_latency": [490, 0, 0, 0],
        "duration": [0, 0, 10, 0],
    }
    turned = {"ended": {"unauthorized": 1}}
    counted = {"latency_bounds_s": BOUNDS, "classes": {"none": turned, "interactive": interactive}}
    return a_status(uptime_s=110.0, counted=counted)


def test_rates_and_percentiles_cover_the_time_between_statuses() -> None:
    lines = screen(later(), a_status(), columns=120, rows=40)

    assert lines == [
        "headgate 1.2.3  serving  up 0:01:50  config abc  open 3",
        "",
        "class          queued   req/s  served  TTFT p50      p99  ITL p50  wait p99  tokens/s",
        "interactive         2     2.0    50 %    550 ms   991 ms    50 ms     99 ms        50",
        "",
        "outcomes, last 10 s: completed 10  queue_full 10  unauthorized 1",
        "",
        "endpoint                      state    in flight            running  waiting    KV",
        "p/a                           ready    #####..... 5/10            5        1  25 %",
        "p/b                           ejected  .......... 0/10            -        -     -",
    ]


def test_missing_values_are_shown_as_dash() -> None:
    lines = screen(a_status(), a_status(), columns=120, rows=40)

    assert lines[3].split() == ["interactive", "2", "0.0", "-", "-", "-", "-", "-", "0"]
    assert lines[5] == "outcomes, last 0 s: none"


def test_screen_fits_a_small_terminal() -> None:
    lines = screen(later(), a_status(), columns=40, rows=5)

    assert len(lines) == 5
    assert max(len(line) for line in lines) <= 40


def test_reload_problem_is_shown() -> None:
    lines = screen(a_status(reload_problems=["headgate.yaml:3: x"]), a_status(), columns=120, rows=40)

    assert lines[-1] == "! headgate.yaml:3: x"


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0], 0.5, 0.05),
        ([2, 2, 0, 0], 0.75, 0.55),
        ([0, 0, 0, 3], 0.5, 10.0),
    ],
)
def test_percentiles_are_interpolated_within_a_bucket(counts: list[int], share: float, value: float | None) -> None:
    assert quantile(counts, BOUNDS, share) == pytest.approx(value)


def test_restarted_gateway_is_not_compared_with_old_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = TopScreen(terminal=False)
    view.show(later(), "url")
    view.show(a_status(uptime_s=1.0), "url")

    assert "outcomes, last 0 s: none" in capsys.readouterr().out.split("\n\n\n")[-1]
    assert len(view._past) == 1


def test_engine_problems_are_shown_below_endpoints() -> None:
    engine = {"endpoint_id": "p/a", "telemetry": {}, "problems": ["/metrics lacks x; check that this engine is vllm"]}
    lines = screen(a_status(engines=[engine]), a_status(), columns=120, rows=40)

    assert lines[-1] == "! p/a: /metrics lacks x; check that this engine is vllm"


def test_drained_endpoint_is_marked() -> None:
    orders = [
        {"verb": "drain", "target": "p/a", "remaining_s": 60},
        {"verb": "hold", "target": "batch", "remaining_s": 60},
    ]
    lines = screen(a_status(overrides=orders), a_status(), columns=120, rows=40)

    assert [line.split()[:2] for line in lines if line.startswith("p/")] == [["p/a", "drained"], ["p/b", "ejected"]]


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.parametrize("key", ["q", "Q", "\x03"], ids=["q", "Q", "Ctrl-C"])
def test_key_press_quits_top_and_restores_the_terminal(key: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "headgate.cli.main", "top", "--url", f"http://127.0.0.1:{free_port()}"]
        os.execv(sys.executable, command)
    shown = b""
    while b"No gateway is responding" not in shown:
        shown += os.read(terminal, 4096)
    before = termios.tcgetattr(terminal)
    # Other keys must not quit.
    os.write(terminal, b"x" + key.encode())
    with suppress(OSError):
        while part := os.read(terminal, 4096):
            shown += part
    _, status = os.waitpid(pid, 0)
    os.close(terminal)

    assert not before[3] & termios.ICANON
    assert os.waitstatus_to_exitcode(status) == 0
    assert shown.endswith(b"\x1b[?25h\x1b[?1049l")
