"""Does a person see where the time went, in eighty columns and without colour?"""

from headgate.cli.explain import lines, listed
from headgate.cli.output.explanation import Budget, CallerStage, Explanation, FoundRequests, Listed, StageSpan, Step
from tests.cli.conftest import Headgate

TRIED_TWICE = (
    StageSpan("ingress", 0.0, 1.0),
    StageSpan("queue", 1.0, 1_199.0, 1),
    StageSpan("connect", 1_200.0, 2.0, 1),
    StageSpan("prefill", 1_202.0, 300.0, 1),
    StageSpan("connect", 1_502.0, 3.0, 2),
    StageSpan("prefill", 1_505.0, 495.0, 2),
    StageSpan("decode", 2_000.0, 1_999.0, 2),
    StageSpan("settle", 3_999.0, 1.0),
)
BUDGET = Budget({"queue": 200.0, "prefill": 500.0, "decode": 5_000.0}, ttft_ms=1_500.0)


def an_explanation(**fields: object) -> Explanation:
    said = {"summary": "It was so.", "arrived_at": "2026-01-01T00:00:00.000+00:00", "steps": (Step(0.0, "arrived"),)}
    return Explanation(request_id="r", tenant="acme", model="m", **(said | fields))  # type: ignore[arg-type]


def test_each_stage_has_a_bar_at_its_place_and_what_is_beyond_its_budget_shows() -> None:
    explanation = an_explanation(
        stages=TRIED_TWICE,
        budget=BUDGET,
        late={"ttft": "queue"},
        caller_stages=(CallerStage("retrieval", 120.0),),
        told_by="gw-2",
    )

    assert (
        "\n".join(lines(explanation))
        == """\
It was so.

STAGE           SECONDS   BUDGET  0 s                                    4.000 s
ingress           0.001           #
queue, try 1      1.199    0.200  ###!!!!!!!!!!!
connect, try 1    0.002                         #
prefill, try 1    0.300    0.500                ###
connect, try 2    0.003                            #
prefill, try 2    0.495    0.500                   ###!!!
decode, try 2     1.999    5.000                         #######################
settle            0.001                                                        #
! is time beyond the budget of the stage.
Its first token came later than its class allows (1.500 s): queue took the most
of that time.
Its caller says of itself, before it asked: retrieval 0.120 s.

SECONDS  WHAT     WHY
  0.000  arrived

It arrived at 2026-01-01T00:00:00.000+00:00; times count from there. This is
told by gw-2 of its cell."""
    )


def test_one_that_took_no_time_at_all_can_be_drawn() -> None:
    drawn = list(lines(an_explanation(stages=(StageSpan("auth", 0.0, 0.0),), late={"duration": "auth"})))

    assert drawn[3] == "auth     0.000"
    assert "Its end came later than its class allows: auth took the most of that time." in drawn


def a_request(name: str, total_ms: float, **fields: object) -> Listed:
    arrived = "2026-01-01T00:00:00.250+00:00"
    return Listed(request_id=name, arrived_at=arrived, total_ms=total_ms, **fields)  # type: ignore[arg-type]


def test_many_requests_have_a_line_each_for_their_time() -> None:
    stages = (StageSpan("queue", 0.0, 500.0, 1), StageSpan("prefill", 500.0, 400.0, 1), StageSpan("new", 900.0, 100.0))
    slow = a_request(
        "req_slow",
        1_000.0,
        tenant="acme",
        service_class="chat",
        outcome="completed",
        stages=stages,
        over_budget=("queue",),
    )
    refused = a_request("req_refused\x1b", 10.0, stages=(StageSpan("auth", 0.0, 10.0),))
    shown = list(listed(FoundRequests((slow, refused), whole=False, not_heard=("gw-2",)), 60))

    assert shown == [
        "2026-01-01 (UTC)",
        "00:00:00  req_slow  1.000 s  completed  chat  acme",
        "  QQQQQQQQQQQQQQQQQQQQQQQQQQQQQppppppppppppppppppppppp??????",
        "00:00:00  req_refused?  0.010 s  -  -  -",
        "  a",
        "",
        "i ingress, a auth, c classify, q queue, r route, n connect,",
        "p prefill, d decode, o post_processing, s settle; capitals",
        "took longer than their budget.",
        "There may be more: the search ran out of time, or older",
        "records are no longer kept (records.folder keeps them).",
        "Not heard: gw-2.",
    ]


def test_none_found_is_said() -> None:
    assert list(listed(FoundRequests(()))) == ["No such request is known."]


def test_one_or_many_are_asked_for_and_not_both(headgate: Headgate) -> None:
    for arguments in ((), ("req_1", "--since", "10m")):
        said = headgate("explain", *arguments)
        assert (said.code, said.out) == (2, "")
        assert said.err == "headgate: name one request by its id, or ask for many, such as --since 10m\n"


def test_a_length_is_written_with_its_unit(headgate: Headgate) -> None:
    for wrong in ("2", "0s", "fast", "2 s"):
        said = headgate("explain", "--slower", wrong)
        assert said.code == 2
        assert "is no length of time; write one such as 500ms, 2s or 1.5m" in said.err
