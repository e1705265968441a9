"""Stage bars in `headgate explain`."""

from headgate.cli.explain import lines, request_list_lines
from headgate.cli.output.explanation import (
    CallerStage,
    ExplainedBudget,
    ExplainedStage,
    Explanation,
    RequestList,
    RequestSummary,
    Step,
)
from tests.cli.conftest import Headgate

TRIED_TWICE = (
    ExplainedStage("ingress", 0.0, 1.0),
    ExplainedStage("queue", 1.0, 1_199.0, 1),
    ExplainedStage("connect", 1_200.0, 2.0, 1),
    ExplainedStage("prefill", 1_202.0, 300.0, 1),
    ExplainedStage("connect", 1_502.0, 3.0, 2),
    ExplainedStage("prefill", 1_505.0, 495.0, 2),
    ExplainedStage("decode", 2_000.0, 1_999.0, 2),
    ExplainedStage("settle", 3_999.0, 1.0),
)
BUDGET = ExplainedBudget({"queue": 200.0, "prefill": 500.0, "decode": 5_000.0}, ttft_ms=1_500.0)


def an_explanation(**fields: object) -> Explanation:
    said = {"summary": "It was so.", "arrived_at": "2026-01-01T00:00:00.000+00:00", "steps": (Step(0.0, "arrived"),)}
    return Explanation(request_id="r", tenant="acme", model="m", **(said | fields))  # type: ignore[arg-type]


def test_stage_bars_show_position_and_budget_overrun() -> None:
    explanation = an_explanation(
        stages=TRIED_TWICE,
        budget=BUDGET,
        missed_targets={"ttft": "queue"},
        caller_stages=(CallerStage("retrieval", 120.0),),
        reported_by="gw-2",
    )

    assert (
        "\n".join(lines(explanation))
        == """\
It was so.

STAGE               SECONDS   BUDGET  0 s                                4.000 s
ingress               0.001           #
queue, attempt 1      1.199    0.200  ###!!!!!!!!!!
connect, attempt 1    0.002                        #
prefill, attempt 1    0.300    0.500               ###
connect, attempt 2    0.003                           #
prefill, attempt 2    0.495    0.500                  ##!!!
decode, attempt 2     1.999    5.000                       #####################
settle                0.001                                                    #
! marks time beyond the stage budget.
The time to first token missed the class's target (1.500 s); the slowest stage
was queue.
Stages before the request, reported by the client: retrieval 0.120 s.

SECONDS  EVENT    REASON
  0.000  arrived

Times are relative to the arrival at 2026-01-01T00:00:00.000+00:00. Recorded by
cell member gw-2."""
    )


def test_bars_are_shown_for_request_without_duration() -> None:
    drawn = list(lines(an_explanation(stages=(ExplainedStage("auth", 0.0, 0.0),), missed_targets={"duration": "auth"})))

    assert drawn[3] == "auth     0.000"
    assert "The duration missed the class's target; the slowest stage was auth." in drawn


def a_request(name: str, total_ms: float, **fields: object) -> RequestSummary:
    arrived = "2026-01-01T00:00:00.250+00:00"
    return RequestSummary(request_id=name, arrived_at=arrived, total_ms=total_ms, **fields)  # type: ignore[arg-type]


def test_request_list_has_one_line_per_request() -> None:
    stages = (
        ExplainedStage("queue", 0.0, 500.0, 1),
        ExplainedStage("prefill", 500.0, 400.0, 1),
        ExplainedStage("new", 900.0, 100.0),
    )
    slow = a_request(
        "req_slow",
        1_000.0,
        tenant="acme",
        service_class="chat",
        outcome="completed",
        stages=stages,
        over_budget=("queue",),
    )
    refused = a_request("req_refused\x1b", 10.0, stages=(ExplainedStage("auth", 0.0, 10.0),))
    shown = list(request_list_lines(RequestList((slow, refused), complete=False, unreachable_members=("gw-2",)), 60))

    assert shown == [
        "2026-01-01 (UTC)",
        "00:00:00  req_slow  1.000 s  completed  chat  acme",
        "  QQQQQQQQQQQQQQQQQQQQQQQQQQQQQppppppppppppppppppppppp??????",
        "00:00:00  req_refused?  0.010 s  -  -  -",
        "  a",
        "",
        "i ingress, a auth, c classify, q queue, r route, n connect,",
        "p prefill, d decode, o post_processing, s settle; stages in",
        "capitals exceeded their budget.",
        "The list may be incomplete: the search timed out, or older",
        "records are no longer kept; records.directory keeps them",
        "longer.",
        "No response from: gw-2.",
    ]


def test_request_properties_are_cut_off_only_on_a_terminal() -> None:
    request = a_request(
        "req_0123456789abcdef01234567", 10.0, tenant="acme", service_class="interactive", outcome="model_not_found"
    )
    found = RequestList((request,))
    whole = "00:00:00  req_0123456789abcdef01234567  0.010 s  model_not_found  interactive  acme"

    assert list(request_list_lines(found))[1] == whole
    assert list(request_list_lines(found, truncate=True))[1] == whole[:80] != whole


def test_empty_search_result_is_reported() -> None:
    assert list(request_list_lines(RequestList(()))) == ["No request matches."]


def test_request_id_and_filters_are_mutually_exclusive(headgate: Headgate) -> None:
    for arguments in ((), ("req_1", "--since", "10m")):
        said = headgate("explain", *arguments)
        assert (said.code, said.out) == (2, "")
        assert said.err == "headgate: give either a request id or filters such as --since 10m\n"


def test_duration_option_requires_a_unit(headgate: Headgate) -> None:
    for wrong in ("2", "0s", "fast", "2 s"):
        said = headgate("explain", "--slower-than", wrong)
        assert said.code == 2
        assert "is not a duration; use a number with a unit, such as 500ms or 1.5m" in said.err
