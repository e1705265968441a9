"""Does the live view say what the gateway said?"""

import pytest

from headgate.cli.output.view import quantile, screen
from headgate.cli.top import View

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
    """Ten seconds on: 20 ended, half of them served with first tokens between 0.1 and 1 s."""
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


def test_rates_and_percentiles_are_those_of_the_time_between() -> None:
    lines = screen(later(), a_status(), columns=120, rows=40)

    assert lines == [
        "headgate 1.2.3  serving  up 0:01:50  config abc  open 3",
        "",
        "class          queued   req/s  served  TTFT p50      p99  ITL p50  wait p99  tokens/s",
        "interactive         2     2.0    50 %    550 ms   991 ms    50 ms     99 ms        50",
        "",
        "endings, last 10 s: completed 10  queue_full 10  unauthorized 1",
        "",
        "endpoint                      state    in flight            engine runs  waits    KV",
        "p/a                           ready    #####..... 5/10                5      1  25 %",
        "p/b                           ejected  .......... 0/10                -      -     -",
    ]


def test_nothing_yet_is_shown_as_nothing() -> None:
    lines = screen(a_status(), a_status(), columns=120, rows=40)

    assert lines[3].split() == ["interactive", "2", "0.0", "-", "-", "-", "-", "-", "0"]
    assert lines[5] == "endings, last 0 s: none"


def test_a_small_terminal_is_not_overrun() -> None:
    lines = screen(later(), a_status(), columns=40, rows=5)

    assert len(lines) == 5
    assert max(len(line) for line in lines) <= 40


def test_a_wrong_reload_stands_on_the_screen() -> None:
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
def test_percentiles_lie_evenly_inside_a_bucket(counts: list[int], share: float, value: float | None) -> None:
    assert quantile(counts, BOUNDS, share) == pytest.approx(value)


def test_a_gateway_that_was_started_again_is_not_compared_with_itself_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = View(terminal=False)
    view.show(later(), "url")
    view.show(a_status(uptime_s=1.0), "url")

    assert "endings, last 0 s: none" in capsys.readouterr().out.split("\n\n\n")[-1]
    assert len(view._past) == 1


def test_what_is_wrong_with_an_engine_is_told_below() -> None:
    engine = {"endpoint_id": "p/a", "telemetry": {}, "problems": ["/metrics lacks x; is this engine really vllm?"]}
    lines = screen(a_status(engines=[engine]), a_status(), columns=120, rows=40)

    assert lines[-1] == "! p/a: /metrics lacks x; is this engine really vllm?"


def test_a_drained_endpoint_is_marked() -> None:
    orders = [{"verb": "drain", "target": "p/a", "left_s": 60}, {"verb": "hold", "target": "batch", "left_s": 60}]
    lines = screen(a_status(orders=orders), a_status(), columns=120, rows=40)

    assert [line.split()[:2] for line in lines if line.startswith("p/")] == [["p/a", "drained"], ["p/b", "ejected"]]
