"""`headgate record`: sources, summary, exit codes and messages."""

import asyncio
import json
import os
import re
import signal
import stat
from pathlib import Path

import pytest

from headgate.model.outcome import Outcome
from headgate.model.units import MINUTE, SECOND, Duration, Instant
from headgate.telemetry.records.row import row_of
from headgate.telemetry.records.segment_writer import SegmentWriter
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.gateway import Config, a_config, chat, gateway_process_with_client
from testing.ports import free_port
from testing.records import ARRIVED, a_record, an_attempt
from testing.simulated_engines import HEADGATE
from tests.cli.conftest import Headgate

CSV = "at,prompt_tokens,output_tokens,class,tenant,model\n10,100,5,interactive,acme,m\n12.5,200,7,batch,globex,m\n"
SECRET, OPERATOR = "only for these tests", "hg-operator"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(CSV)
    return path


def test_import_is_summarized(headgate: Headgate, log: Path) -> None:
    said = headgate("record", "trace.jsonl", "--import", "csv", "log.csv")

    assert (said.code, said.err) == (0, "")
    assert re.sub(r"[\d,]+ bytes", "N bytes", said.out) == (
        "trace.jsonl: 2 requests in 2.5 s, N bytes\n"
        "tokens    300 prompt (0 cached), 12 output\n"
        "classes   interactive 1, batch 1\n"
        "models    m 2\n"
        "outcomes  completed 2\n"
        "tenants   2\n"
        "prefixes  0 different blocks\n"
    )
    header, first, second, end = map(json.loads, (log.parent / "trace.jsonl").read_text().splitlines())
    assert header["source"] == "csv"
    assert header.keys() == {"headgate_trace", "time_unit", "prefix_block_tokens", "source", "tenants"}
    assert (first["at_us"], second["at_us"], end["end"]["requests"]) == (0, 2_500_000, 2)
    assert re.fullmatch("t[0-9a-f]{10}", first["tenant"])


def test_summary_is_available_as_json(headgate: Headgate, log: Path) -> None:
    said = headgate("record", "trace.jsonl.gz", "--import", "csv", "log.csv", "--json")

    data = json.loads(said.out)
    assert data.pop("bytes") == (log.parent / "trace.jsonl.gz").stat().st_size
    assert data == {
        "file": "trace.jsonl.gz",
        "source": "csv",
        "requests": 2,
        "prompt_tokens": 300,
        "cached_tokens": 0,
        "output_tokens": 12,
        "last_at_us": 2_500_000,
        "prefix_ids": 0,
        "dropped": 0,
        "unfinished": 0,
        "complete": True,
        "skipped": 0,
        "classes": {"interactive": 1, "batch": 1},
        "models": {"m": 2},
        "outcomes": {"completed": 2},
        "tenants": 2,
        "warnings": [],
    }


def test_names_and_date_are_kept_on_request(headgate: Headgate, log: Path) -> None:
    log.write_text(CSV.replace("\n10,", "\n2026-11-19T10:00:00Z,").replace("\n12.5,", "\n2026-11-19T10:00:01Z,"))
    assert headgate("record", "t.jsonl", "--import", "csv", "log.csv", "--keep-tenants", "--keep-date").code == 0

    header, first, *_ = map(json.loads, (log.parent / "t.jsonl").read_text().splitlines())
    assert (header["tenants"], header["start"]) == ("named", "2026-11-19T10:00:00+00:00")
    assert first["tenant"] == "acme"


def test_trace_that_reaches_its_limit_is_incomplete(headgate: Headgate, log: Path) -> None:
    assert headgate("record", "t.jsonl", "--import", "csv", "log.csv", "--limit", "2").code == 0
    said = headgate("record", "t.jsonl", "--import", "csv", "log.csv", "--limit", "1")

    assert said.code == 1
    assert said.err == "warning: the trace reached its limit of 1 requests; raise --limit to record more\n"
    assert json.loads((log.parent / "t.jsonl").read_text().splitlines()[-1])["end"]["complete"] is False


def test_records_are_read(headgate: Headgate, tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "records", "g", retention_ns=Duration(60 * MINUTE), bytes_max=2**30)
    records = [a_record(an_attempt(), request_id="a", prompt_tokens=9), a_record(request_id="b")]
    records[1].arrived_at = Instant(ARRIVED + 100 * SECOND)
    writer.add([row_of(each, None) for each in records], Instant(ARRIVED))
    writer.close()
    said = headgate("record", "t.jsonl", "--from-records", "records", "--json")
    assert (said.code, json.loads(said.out)["outcomes"]) == (
        0,
        {Outcome.COMPLETED.value: 1, Outcome.QUEUE_FULL.value: 1},
    )
    said = headgate("record", "t.jsonl", "--from-records", "records", "--duration", "10s", "--json")
    assert json.loads(said.out)["outcomes"] == {Outcome.QUEUE_FULL.value: 1}

    [path] = (tmp_path / "records").rglob("*.rows")
    (path.parent / "0-damaged.rows").write_bytes(b"not a record file at all, or damaged")
    said = headgate("record", "t.jsonl", "--from-records", "records")
    assert said.code == 1
    assert said.err == "warning: 1 record files or blocks are damaged and were left out\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--import", "xml", "log.csv"), "--import: unknown format 'xml'; use one of otel, litellm, csv"),
        (("--import", "csv", "missing"), "missing cannot be read: No such file or directory; specify an existing file"),
        (("--import", "csv", "log.csv", "--url", "x"), "--url has no effect with this source; remove it"),
        (("--import", "csv", "log.csv", "--duration", "5s"), "--duration has no effect with this source; remove it"),
        (("--recent", "--columns", "at=x"), "--columns has no effect with this source; remove it"),
        (("--import", "csv", "log.csv", "--columns", "x\x1b"), "--columns: 'x\\x1b' is invalid; use FIELD=COLUMN"),
        (("--duration", "8d"), "--duration is longer than 7d; record shorter periods"),
        (("--from-records", "nowhere"), "nowhere is not a directory; use the value of records.directory"),
        (("--from-records", "."), "the source contains no requests; check the file and its format"),
    ],
)
def test_invalid_arguments_are_rejected(
    headgate: Headgate, log: Path, arguments: tuple[str, ...], problem: str
) -> None:
    said = headgate("record", "t.jsonl", *arguments)

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"headgate record: {problem}")
    assert sorted(each.name for each in log.parent.iterdir()) == ["log.csv"]


def test_sources_exclude_each_other(headgate: Headgate) -> None:
    said = headgate("record", "t.jsonl", "--recent", "--from-records", "x")
    assert (said.code, "not allowed with argument" in said.err) == (2, True)


def test_invalid_row_leaves_no_file(headgate: Headgate, log: Path) -> None:
    log.write_text(CSV + "13,\x1b[31m,1,,,\n")
    said = headgate("record", "t.jsonl", "--import", "csv", "log.csv")

    assert said.code == 2
    assert said.err == (
        "headgate record: log.csv:4: prompt_tokens is '\\x1b[31m', not a whole number of tokens from 0 to 2147483648\n"
    )
    assert not (log.parent / "t.jsonl").exists()


def test_interrupted_import_leaves_no_file(headgate: Headgate, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headgate.planning.recording.trace_writer.TraceWriter.add", interrupted)
    said = headgate("record", "t.jsonl", "--import", "csv", "log.csv")

    assert (said.code, said.err) == (1, "headgate record: stopped; no trace was written\n")
    assert [each.name for each in log.parent.iterdir()] == ["log.csv"]


def test_unwritable_trace_is_reported(headgate: Headgate, log: Path) -> None:
    said = headgate("record", "no/such/folder.jsonl", "--import", "csv", "log.csv")
    problem = "no/such/folder.jsonl cannot be written: No such file or directory; use an existing directory"
    assert (said.code, said.err) == (2, f"headgate record: {problem}\n")


@pytest.mark.parametrize("trace", [".", "/", "pipe"])
def test_trace_replaces_only_regular_files(headgate: Headgate, log: Path, trace: str) -> None:
    os.mkfifo(log.parent / "pipe")
    said = headgate("record", trace, "--import", "csv", "log.csv")

    is_folder = trace in {".", "/"}
    problem = "a directory; specify a file" if is_folder else "not a regular file; specify a file"
    assert (said.code, said.err.startswith(f"headgate record: {trace} is {problem}")) == (2, True)
    assert stat.S_ISFIFO((log.parent / "pipe").stat().st_mode)


def test_trace_is_written_to_the_target_of_a_link(headgate: Headgate, log: Path) -> None:
    link, target = log.parent / "link.jsonl", log.parent / "target.jsonl"
    link.symlink_to(target)

    assert headgate("record", "link.jsonl", "--import", "csv", "log.csv").code == 0
    assert link.is_symlink()
    assert target.read_text().startswith('{"headgate_trace":1')


def test_log_is_not_replaced_by_its_trace(headgate: Headgate, log: Path) -> None:
    said = headgate("record", "./log.csv", "--import", "csv", "log.csv")

    problem = "log.csv is the log itself; specify another file for the trace"
    assert (said.code, said.err, log.read_text()) == (2, f"headgate record: {problem}\n", CSV)


def test_log_that_cannot_be_read_twice_is_rejected(headgate: Headgate, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    said = headgate("record", "t.jsonl", "--import", "csv", "pipe")

    problem = "pipe is not a regular file; it is read twice, so save the log to a file first"
    assert (said.code, said.err) == (2, f"headgate record: {problem}\n")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("at,prompt_tokens,output_tokens\n1,2,3\n1,2\n", "3: the row has 2 values, but the header has 3 columns"),
        ("at,prompt_tokens,output_tokens\n1,2,3,4\n", "2: the row has 4 values, but the header has 3 columns"),
        ("at,prompt_tokens,output_tokens,at\n1,2,3,9\n", '1: the column "at" is repeated; rename one'),
    ],
)
def test_ambiguous_rows_are_rejected(headgate: Headgate, log: Path, rows: str, problem: str) -> None:
    log.write_text(rows)
    said = headgate("record", "t.jsonl", "--import", "csv", "log.csv")

    assert (said.code, said.err.startswith(f"headgate record: log.csv:{problem}")) == (2, True)


def test_empty_values_at_the_end_of_a_row_are_ignored(headgate: Headgate, log: Path) -> None:
    log.write_text("at,prompt_tokens,output_tokens\n1,2,3,\n")

    assert headgate("record", "t.jsonl", "--import", "csv", "log.csv").code == 0


def test_gateway_that_does_not_respond_is_reported(
    headgate: Headgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.delenv("HEADGATE_ADMIN_KEY", raising=False)
    said = headgate("record", "t.jsonl", "--url", url)
    assert said.code == 1
    assert "export HEADGATE_ADMIN_KEY=$(headgate keys operator --permissions read,record --write)" in said.err

    monkeypatch.setenv("HEADGATE_ADMIN_KEY", OPERATOR)
    (tmp_path / "t.jsonl").write_text("earlier")
    said = headgate("record", "t.jsonl", "--url", url)
    assert (said.code, said.err.startswith(f"headgate: no gateway is responding at {url}")) == (1, True)
    assert (tmp_path / "t.jsonl").read_text() == "earlier"


# Gateways


def a_gateway_config(url: str) -> Config:
    key = format_digest(digest(SECRET.encode(), OPERATOR))
    return a_config(url, key_secret=SECRET, admin_keys={"ann": {"key": key, "permissions": ["record"]}})


@pytest.mark.process
async def test_live_recording_ends_when_interrupted(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    async with FakeEngine() as engine:
        config = a_gateway_config(engine.url)
        async with gateway_process_with_client(config, tmp_path) as (gateway, _):
            async with gateway.post(chat()) as answer:
                assert answer.status == 200
            recording = await asyncio.create_subprocess_exec(
                *HEADGATE,
                *("record", str(trace), "--url", gateway.admin_url, "--duration", "1h", "--json"),
                env=os.environ | {"HEADGATE_ADMIN_KEY": OPERATOR},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            await gateway.wait_for_status(lambda status: status["held"]["recordings"] == 1)
            for _ in range(3):
                async with gateway.post(chat()) as answer:
                    assert answer.status == 200
            await gateway.wait_until_idle()
            recording.send_signal(signal.SIGINT)
            out, err = await asyncio.wait_for(recording.communicate(), 60)
            await gateway.wait_for_status(lambda status: not status["held"]["recorded_requests"])

    assert (recording.returncode, err) == (0, b"")
    assert json.loads(out)["requests"] == 3
    assert len(trace.read_text().splitlines()) == 5
