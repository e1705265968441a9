"""Tests for the trace file formats."""

import gzip
from pathlib import Path

import pytest

from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.trace_files import read_trace
from headgate.simulation.workload.trace_row import TraceRow


def rows_of(folder: Path, text: str, name: str = "trace") -> list[TraceRow]:
    (folder / name).write_text(text)
    return list(read_trace(folder / name))


def test_native_trace_format_is_read(tmp_path: Path) -> None:
    text = "at_s,prompt_tokens,output_tokens,class,tenant\n0.5,10,20,interactive,acme\n1.25,30,40,,\n"

    assert rows_of(tmp_path, text) == [
        TraceRow(500_000_000, 10, 20, "interactive", "acme"),
        TraceRow(1_250_000_000, 30, 40),
    ]


def test_columns_can_be_in_any_order_with_extra_columns(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "output_tokens,note,at_s,prompt_tokens\n2,x,3,1\n") == [TraceRow(3_000_000_000, 1, 2)]


def test_azure_2023_format_is_read_with_100_ns_resolution(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2030-01-01 00:00:59.9999999,100,7\r\n"
        "2030-01-01 00:01:00.0000001,200,8\r\n"
        "2030-01-01 00:01:01,300,9"
    )

    rows = rows_of(tmp_path, text)

    assert [row.at_ns - rows[0].at_ns for row in rows] == [0, 200, 1_000_000_100]
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(100, 7), (200, 8), (300, 9)]


def test_mooncake_format_is_read(tmp_path: Path) -> None:
    text = (
        '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]}\n\n'
        '{"timestamp": 3000, "input_length": 800, "output_length": 4, "hash_ids": [0, 1]}\n'
        '{"timestamp": 3001, "input_length": 7, "output_length": 3}\n'
    )

    assert rows_of(tmp_path, text) == [
        TraceRow(0, 6, 5, prefix=(0,)),
        TraceRow(3_000_000_000, 800, 4, prefix=(0, 1)),
        TraceRow(3_001_000_000, 7, 3),
    ]


def test_lmsys_format_is_read_with_clients_as_tenants(tmp_path: Path) -> None:
    text = "timestamp_s,client,prompt_tokens,output_tokens\n0.0,13,14,199\n0.2079,2,36,137\n"

    assert rows_of(tmp_path, text) == [TraceRow(0, 14, 199, tenant="13"), TraceRow(207_900_000, 36, 137, tenant="2")]


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "\ufeffat_s,prompt_tokens,output_tokens\n1,2,3\n") == [TraceRow(1_000_000_000, 2, 3)]
    assert rows_of(tmp_path, '\ufeff{"timestamp": 1, "input_length": 2, "output_length": 3}\n') == [
        TraceRow(1_000_000, 2, 3)
    ]


def test_gzip_file_is_decompressed(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"at_s,prompt_tokens,output_tokens\n1,2,3\n"))

    assert list(read_trace(tmp_path / "t.csv.gz")) == [TraceRow(1_000_000_000, 2, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace:1: the file has no columns; expected a CSV file with"),
        ("when,what\n1,2\n", 'trace:1: unknown columns: "when", "what"; expected a CSV file with'),
        (",".join("abcdefghijklmn") + "\n", 'trace:1: unknown columns: "a", .*"l" and 2 more; expected'),
        ("at_s;prompt_tokens;output_tokens\n0,5;1;1\n", "separate columns with commas, not with ;, and use"),
        ("at_s\tprompt_tokens\toutput_tokens\n0\t1\t1\n", "separate columns with commas, not with tabs"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\n1,many,3\n", 'trace:3: prompt_tokens is "many", not a whole number'),
        (
            "at_s,prompt_tokens,output_tokens\n1,2\n",
            "trace:2: output_tokens is missing; expected a whole number of tokens",
        ),
        ("at_s,prompt_tokens,output_tokens\n1,,3\n", "trace:2: prompt_tokens is missing; expected a whole number"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3.5\n", 'trace:2: output_tokens is "3.5", not a whole number'),
        ("at_s,prompt_tokens,output_tokens\ninf,2,3\n", 'trace:2: at_s is "inf", not a time in seconds'),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\nnan,2,3\n", 'trace:3: at_s is "nan", not a time in seconds'),
        ("at_s,prompt_tokens,output_tokens\n\x1b,2,3\n", r"trace:2: at_s is '\\x1b', not a time"),
        ("at_s,prompt_tokens,output_tokens\n" + "x" * 999 + ",2,3\n", 'trace:2: at_s is "x{80}…", not a time'),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,0\n", 'trace:2: TIMESTAMP is "soon", not a time such as'),
        ("ContextTokens,GeneratedTokens,TIMESTAMP\n1,0\n", "trace:2: TIMESTAMP is missing; expected a time such as"),
        ("timestamp_s,client,prompt_tokens,output_tokens\n1,a,b,3\n", 'trace:2: prompt_tokens is "b", not a whole'),
        ("at_s,prompt_tokens,output_tokens\n1e99,2,3\n", r"trace:2: the time 1e\+99 s is out of range"),
        ("at_s,prompt_tokens,output_tokens\n1,2,-3\n", "trace:2: -3 is not a valid number of tokens; use 0 or more"),
        ("timestamp_s,client,prompt_tokens,output_tokens\n1,a,-2,3\n", "trace:2: -2 is not a valid number of tokens"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2030-01-01 00:00:59,-1,0\n",
            "trace:2: -1 is not a valid number of tokens",
        ),
        ("at_s,prompt_tokens,output_tokens\n1,2," + "3" * 200_000 + "\n", "trace cannot be read: field larger"),
        ('{"timestamp": 0}\n', "trace:1: .*input_length"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 1e999}\n', "trace:2: "),
        ('{"timestamp": 1e305, "input_length": 1, "output_length": 1}\n', "trace:1: the time is out of range"),
        ('{"timestamp": 0, "input_length": -7, "output_length": 1}\n', "trace:1: -7 is not a valid number of tokens"),
    ],
)
def test_invalid_file_error_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        rows_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'at_s,prompt_tokens,output_tokens,tenant\n0,1,1,fine\n1,1,1,"\x1b[31mred"\n',
            r"trace:3: tenant '\\x1b\[31mred' contains unprintable characters; rename it",
        ),
        ("at_s,prompt_tokens,output_tokens,class\n0,1,1,a\tb\n", r"trace:2: class 'a\\tb' contains"),
        ("timestamp_s,client,prompt_tokens,output_tokens\n0,a\u200fb,1,1\n", r"trace:2: tenant 'a\\u200fb' contains"),
    ],
)
def test_names_with_unprintable_characters_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        rows_of(tmp_path, text)


def test_corrupt_gzip_file_is_rejected(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"at_s,prompt_tokens,output_tokens\n1,2,3\n" * 9, mtime=0))
    packed[10:14] = b"\xff" * 4
    (tmp_path / "t.csv.gz").write_bytes(packed)

    with pytest.raises(WorkloadError, match=r"t\.csv\.gz cannot be read"):
        list(read_trace(tmp_path / "t.csv.gz"))


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"none\.csv cannot be read: No such file or directory; set HEADGATE_DATA"):
        list(read_trace(tmp_path / "none.csv"))
