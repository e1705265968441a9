"""Reading traces written by `headgate record`."""

import gzip
import json
from pathlib import Path

import pytest

from headgate.model.outcome import Outcome
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.recorded_trace import NOT_REPLAYED
from headgate.simulation.workload.trace_files import LINE_CHARS_MAX, read_trace
from headgate.simulation.workload.trace_row import TraceRow

HEADER = '{"headgate_trace":1,"time_unit":"us","prefix_block_tokens":512,"source":"gateway","tenants":"hashed"}'
END = '{"end":{"requests":1}}'


def rows_of(folder: Path, *lines: str, header: str = HEADER) -> list[TraceRow]:
    path = folder / "trace.jsonl"
    path.write_text("\n".join([header, *lines]) + "\n")
    return list(read_trace(path))


def test_line_becomes_a_row(tmp_path: Path) -> None:
    line = (
        '{"at_us":1500,"prompt_tokens":600,"output_tokens":5,"cached_tokens":512,"api":"messages","model":"m",'
        '"class":"batch","tenant":"t1","stream":false,"retries":1,"prefix":[1,2],"stages":[["s1",9]],"new_field":1}'
    )
    usual = '{"at_us":0,"prompt_tokens":6}'

    assert rows_of(tmp_path, line, "", usual, END) == [
        TraceRow(1_500_000, 600, 5, "batch", "t1", (1, 2), "m", "messages", stream=False, previous_tries=1),
        TraceRow(0, 6, 0, api="chat", stream=True),
    ]


def test_truncated_trace_is_read_up_to_its_last_line(tmp_path: Path) -> None:
    assert len(rows_of(tmp_path, '{"at_us":0,"prompt_tokens":6}')) == 1
    assert rows_of(tmp_path) == []


def test_compressed_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(f'{HEADER}\n{{"at_us":0,"prompt_tokens":6}}\n{END}\n'.encode()))
    assert len(list(read_trace(path))) == 1


@pytest.mark.parametrize("outcome", sorted(NOT_REPLAYED))
def test_request_that_no_gateway_accepts_is_not_replayed(tmp_path: Path, outcome: str) -> None:
    shed = json.dumps({"at_us": 0, "prompt_tokens": 6, "outcome": Outcome.SHED})
    assert len(rows_of(tmp_path, json.dumps({"at_us": 0, "prompt_tokens": 6, "outcome": outcome}), shed)) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"at_us":0}', ":2: Object missing required field `prompt_tokens`"),
        ('{"at_us":"0","prompt_tokens":1}', ":2: Expected `int`"),
        ('{"at_us":0,"prompt_tokens":-1}', ":2: -1 is not a valid number of tokens"),
        ('{"at_us":9223372036854775807,"prompt_tokens":1}', ":2: the time .* is out of range"),
        ('{"at_us":0,"prompt_tokens":1,"tenant":"a\\u001b[31m"}', ":2: tenant 'a.x1b.31m' contains unprintable"),
        ('{"at_us":0,"prompt_tokens":1,"model":"a\\n"}', ":2: model 'a.n' contains unprintable"),
        ('{"at_us":0,"prompt_tokens":1,"api":"video"}', ":2: unknown api 'video'; use one of chat"),
        ('{"at_us":0,"prompt', ":2: JSON is malformed"),
        ('{"end":5}', ":2: Expected `object`"),
    ],
)
def test_invalid_line_is_rejected_with_its_number(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        rows_of(tmp_path, line)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ('{"headgate_trace":2}', "version 2 of the trace format is not supported, only 1; use a newer headgate"),
        ('{"headgate_trace":1,"time_unit":"ms"}', 'time_unit must be "us"'),
        ('{"headgate_trace":1,"prefix_block_tokens":16}', "prefix_block_tokens 512; convert the trace"),
        ('{"headgate_trace":"x"}', ":1: Expected `int`"),
    ],
)
def test_unsupported_header_is_rejected(tmp_path: Path, header: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        rows_of(tmp_path, header=header)


def test_deeply_nested_line_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"trace.jsonl:2: "):
        rows_of(tmp_path, '{"at_us":0,"prompt_tokens":1,"x":' + "[" * 100_000)


def test_overlong_line_is_rejected_before_it_is_read_completely(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=f"trace.jsonl:2: the line is longer than {LINE_CHARS_MAX} characters"):
        rows_of(tmp_path, " " * (LINE_CHARS_MAX + 2))
