"""Log output: levels, formats and rate limits."""

import json
import logging

import pytest

from headgate.core.commands import BudgetCrossed, Command, Eject, End
from headgate.core.events import PolicyChanged, RequestArrived, TimerFired
from headgate.model.money import BudgetStatus, NanoUsd, Period
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Api, Ticket
from headgate.model.units import SECOND
from headgate.telemetry.log import JsonFormatter, TextFormatter, log_event
from headgate.telemetry.log_observer import (
    ENDINGS_PER_S_MAX,
    REASON_CHARS_MAX,
    REJECTIONS_PER_TENANT_S_MAX,
    LogObserver,
)


def an_end(outcome: Outcome, request_id: str = "req_1") -> End:
    return End(request_id, outcome, "interactive", 2, 1_500_000_000, None, "the engine answered 500: no luck")


def an_arrival(tenant: str) -> RequestArrived:
    return RequestArrived(Ticket("req_1", Api.CHAT, "m", tenant, stream=False, prompt_bytes=1))


def lines(caplog: pytest.LogCaptureFixture, formatter: logging.Formatter) -> list[str]:
    return [formatter.format(record) for record in caplog.records]


def told(caplog: pytest.LogCaptureFixture, *commands: Command, level: str = "INFO", now: int = 0) -> list[dict]:
    with caplog.at_level(level, logger="headgate"):
        LogObserver().observe(TimerFired(), commands, now=now)
    found = [json.loads(line) for line in lines(caplog, JsonFormatter())]
    for line in found:
        line.pop("time")
    return found


def test_engine_failure_is_logged_as_a_warning_with_its_request_id(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, an_end(Outcome.ENGINE_ERROR)) == [
        {
            "level": "warning",
            "logger": "headgate",
            "message": "request ended",
            "request": "req_1",
            "outcome": "engine_error",
            "service_class": "interactive",
            "attempts": 2,
            "queue_ms": 1500,
            "reason": "the engine answered 500: no luck",
        }
    ]


def test_rejections_are_logged_at_info_level_and_completions_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    ends = an_end(Outcome.QUEUE_FULL), an_end(Outcome.COMPLETED)
    assert [line["level"] for line in told(caplog, *ends)] == ["info"]
    caplog.clear()
    assert [line["level"] for line in told(caplog, *ends, level="DEBUG")] == ["info", "debug"]


def test_text_format_puts_all_fields_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="headgate"):
        LogObserver().observe(TimerFired(), [Eject("small/a", 10 * SECOND, "failed: no luck")], now=0)

    [line] = lines(caplog, TextFormatter())
    assert line.endswith('WARNING headgate: endpoint ejected endpoint=small/a wait="10 s" reason="failed: no luck"')


def test_flood_of_rejections_is_counted_instead_of_logged(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver()
    with caplog.at_level("INFO", logger="headgate"):
        observer.observe(TimerFired(), [an_end(Outcome.SHED, str(number)) for number in range(500)], now=0)
        assert len(caplog.records) == ENDINGS_PER_S_MAX
        observer.observe(TimerFired(), [an_end(Outcome.SHED)], now=SECOND)

    found = [json.loads(line) for line in lines(caplog, JsonFormatter())][ENDINGS_PER_S_MAX:]
    assert [line["message"] for line in found] == ["suppressed request log lines", "request ended"]
    assert found[0]["count"] == 500 - ENDINGS_PER_S_MAX


def test_rejections_for_one_tenant_do_not_use_up_the_log_lines_of_others(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver()
    with caplog.at_level("INFO", logger="headgate"):
        for number in range(200):
            observer.observe(an_arrival("flood"), [an_end(Outcome.RATE_LIMITED, str(number))], now=0)
        observer.observe(an_arrival("acme"), [an_end(Outcome.RATE_LIMITED, "req_acme")], now=0)
        assert len(caplog.records) == REJECTIONS_PER_TENANT_S_MAX + 1
        observer.observe(TimerFired(), [an_end(Outcome.SHED)], now=SECOND)

    found = [json.loads(line) for line in lines(caplog, JsonFormatter())][REJECTIONS_PER_TENANT_S_MAX:]
    assert found[0]["request"] == "req_acme"
    assert found[1]["count"] == 200 - REJECTIONS_PER_TENANT_S_MAX


def test_values_from_callers_cannot_forge_log_lines_or_fields(caplog: pytest.LogCaptureFixture) -> None:
    end = an_end(Outcome.MODEL_NOT_FOUND, 'x"\n2026-01-01 CRITICAL headgate: forged \x1b[2J\u2028 request=req_2')
    with caplog.at_level("INFO", logger="headgate"):
        LogObserver().observe(TimerFired(), [end], now=0)

    [line] = lines(caplog, TextFormatter())
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert 'request="x\\"\\x0a2026-01-01 CRITICAL headgate: forged \\x1b[2J\\u2028 request=req_2"' in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("acme/search", "acme/search"),
        ('x\\" operator=alice', r'"x\\\" operator=alice"'),
        ("x\\", r'"x\\"'),
        ("operator=alice", '"operator=alice"'),
        ("x\n", r'"x\x0a"'),
        (r"x\x0a", r'"x\\x0a"'),
    ],
)
def test_value_cannot_end_its_field_in_the_text_format(
    caplog: pytest.LogCaptureFixture, value: str, shown: str
) -> None:
    with caplog.at_level("INFO", logger="headgate"):
        log_event(logging.INFO, "tenant data read", tenant=value, status=200)

    [line] = lines(caplog, TextFormatter())
    assert line.endswith(f"headgate: tenant data read tenant={shown} status=200")


def test_long_reasons_are_truncated(caplog: pytest.LogCaptureFixture) -> None:
    end = End("req_1", Outcome.MODEL_NOT_FOUND, None, 0, 0, None, "model " + "z" * 60_000)

    [line] = told(caplog, end)
    assert len(line["reason"]) == REASON_CHARS_MAX


def test_exception_is_logged_with_its_traceback_in_both_formats() -> None:
    try:
        raise ValueError("ours")
    except ValueError as error:
        info = type(error), error, error.__traceback__
    record = logging.LogRecord("headgate", logging.CRITICAL, "", 0, "internal error", None, info)

    assert "ValueError: ours" in json.loads(JsonFormatter().format(record))["trace"]
    assert TextFormatter().format(record).endswith("ValueError: ours")


def test_budget_threshold_is_logged_at_info_level_and_exhaustion_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = BudgetStatus(
        "tenant:acme", Period.DAY, True, NanoUsd(2_000_000_000), NanoUsd(2_100_000_000), NanoUsd(0), None
    )
    half, whole = told(caplog, BudgetCrossed(left, 50), BudgetCrossed(left, 100))

    assert (half["level"], whole["level"]) == ("info", "warning")
    assert [whole[name] for name in ("scope", "period", "percent", "limit", "spent")] == [
        "tenant:acme",
        "day",
        100,
        "$2.00",
        "$2.10",
    ]


def test_policies_with_the_same_hash_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver()
    with caplog.at_level("INFO", logger="headgate"):
        for policy_hash in ("one", "one", "two", "one"):
            observer.observe(PolicyChanged(Policy(), policy_hash), (), now=0)

    assert [json.loads(line)["hash"] for line in lines(caplog, JsonFormatter())] == ["one", "two", "one"]
