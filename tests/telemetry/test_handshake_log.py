"""Log lines for failed TLS handshakes."""

import logging

import pytest

from headgate.telemetry.log import LINES_PER_S_MAX
from headgate.telemetry.tls_metrics import HandshakeLog


def fields(record: logging.LogRecord) -> dict[str, object]:
    return record.__dict__["fields"]


def test_failure_is_logged_with_its_reason_and_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    HandshakeLog("listen", lambda: 1.0).log_failure("invalid", "10.0.0.1", "wrong version\nnumber")

    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == "TLS handshake failed"
    assert fields(record)["listener"] == "listen"
    assert fields(record)["client"] == "10.0.0.1"
    assert "\n" not in str(fields(record)["detail"])


def test_number_of_lines_per_second_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    now_s = 1.0
    log = HandshakeLog("listen", lambda: now_s)
    for _ in range(LINES_PER_S_MAX + 3):
        log.log_failure("closed", "10.0.0.1", "")
    logged_in_a_second = len(caplog.records)
    now_s = 2.0
    log.log_failure("closed", "10.0.0.1", "")

    suppressed, last = caplog.records[logged_in_a_second:]
    assert logged_in_a_second == LINES_PER_S_MAX
    assert (suppressed.levelno, suppressed.getMessage()) == (logging.WARNING, "suppressed TLS handshake log lines")
    assert fields(suppressed) == {"listener": "listen", "count": 3}
    assert last.getMessage() == "TLS handshake failed"


def test_lines_below_the_log_level_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    now_s = 1.0
    log = HandshakeLog("listen", lambda: now_s)
    for _ in range(2 * LINES_PER_S_MAX):
        log.log_failure("closed", "10.0.0.1", "", level=logging.DEBUG)
    log.log_failure("invalid", "10.0.0.2", "")
    now_s = 2.0
    log.log_failure("invalid", "10.0.0.2", "")

    assert [each.getMessage() for each in caplog.records] == ["TLS handshake failed"] * 2
