"""Are recorded traces read, each in its own shape?"""

import gzip
from pathlib import Path

import pytest

from headgate.simulation.workload.problem import Problem
from headgate.simulation.workload.traces import Row, read_trace


def rows_of(folder: Path, text: str, name: str = "trace") -> list[Row]:
    (folder / name).write_text(text)
    return list(read_trace(folder / name))


def test_our_own_shape(tmp_path: Path) -> None:
    text = "at_s,prompt_tokens,output_tokens,class,tenant\n0.5,10,20,interactive,acme\n1.25,30,40,,\n"

    assert rows_of(tmp_path, text) == [
        Row(500_000_000, 10, 20, "interactive", "acme"),
        Row(1_250_000_000, 30, 40),
    ]


def test_columns_may_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "output_tokens,note,at_s,prompt_tokens\n2,x,3,1\n") == [Row(3_000_000_000, 1, 2)]


def test_the_shape_of_azure_2023_to_the_hundred_nanoseconds(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2030-01-01 00:00:59.9999999,100,7\r\n"
        "2030-01-01 00:01:00.0000001,200,8\r\n"
        "2030-01-01 00:01:01,300,9"
    )

    rows = rows_of(tmp_path, text)

    assert [row.at_ns - rows[0].at_ns for row in rows] == [0, 200, 1_000_000_100]
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(100, 7), (200, 8), (300, 9)]


def test_the_shape_of_mooncake(tmp_path: Path) -> None:
    text = (
        '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]}\n\n'
        '{"timestamp": 3000, "input_length": 800, "output_length": 4, "hash_ids": [0, 1]}\n'
        '{"timestamp": 3001, "input_length": 7, "output_length": 3}\n'
    )

    assert rows_of(tmp_path, text) == [
        Row(0, 6, 5, prefix=(0,)),
        Row(3_000_000_000, 800, 4, prefix=(0, 1)),
        Row(3_001_000_000, 7, 3),
    ]


def test_the_shape_of_lmsys_whose_clients_are_tenants(tmp_path: Path) -> None:
    text = "timestamp_s,client,prompt_tokens,output_tokens\n0.0,13,14,199\n0.2079,2,36,137\n"

    assert rows_of(tmp_path, text) == [Row(0, 14, 199, tenant="13"), Row(207_900_000, 36, 137, tenant="2")]


def test_the_mark_that_spreadsheets_put_first_is_no_part_of_a_column(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "\ufeffat_s,prompt_tokens,output_tokens\n1,2,3\n") == [Row(1_000_000_000, 2, 3)]
    assert rows_of(tmp_path, '\ufeff{"timestamp": 1, "input_length": 2, "output_length": 3}\n') == [
        Row(1_000_000, 2, 3)
    ]


def test_a_packed_file_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"at_s,prompt_tokens,output_tokens\n1,2,3\n"))

    assert list(read_trace(tmp_path / "t.csv.gz")) == [Row(1_000_000_000, 2, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace:1: its columns are not known, for it has none; name a CSV file with"),
        ("when,what\n1,2\n", 'trace:1: its columns are not known: "when", "what"; name a CSV file with'),
        (",".join("abcdefghijklmn") + "\n", 'trace:1: its columns are not known: "a", .*"l" and 2 more; name'),
        ("at_s;prompt_tokens;output_tokens\n0,5;1;1\n", "columns are separated by commas, not by ;: save it so"),
        ("at_s\tprompt_tokens\toutput_tokens\n0\t1\t1\n", "columns are separated by commas, not by tabs"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\n1,many,3\n", 'trace:3: prompt_tokens is "many", not a whole number'),
        ("at_s,prompt_tokens,output_tokens\n1,2\n", "trace:2: output_tokens is missing; give a whole number of tokens"),
        ("at_s,prompt_tokens,output_tokens\n1,,3\n", "trace:2: prompt_tokens is missing; give a whole number"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3.5\n", 'trace:2: output_tokens is "3.5", not a whole number'),
        ("at_s,prompt_tokens,output_tokens\ninf,2,3\n", 'trace:2: at_s is "inf", not a time in seconds'),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\nnan,2,3\n", 'trace:3: at_s is "nan", not a time in seconds'),
        ("at_s,prompt_tokens,output_tokens\n\x1b,2,3\n", r"trace:2: at_s is '\\x1b', not a time"),
        ("at_s,prompt_tokens,output_tokens\n" + "x" * 999 + ",2,3\n", 'trace:2: at_s is "x{80}…", not a time'),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,0\n", 'trace:2: TIMESTAMP is "soon", not a time such as'),
        ("ContextTokens,GeneratedTokens,TIMESTAMP\n1,0\n", "trace:2: TIMESTAMP is missing; give a time such as"),
        ("timestamp_s,client,prompt_tokens,output_tokens\n1,a,b,3\n", 'trace:2: prompt_tokens is "b", not a whole'),
        ("at_s,prompt_tokens,output_tokens\n1e99,2,3\n", r"trace:2: a time of 1e\+99 s is no time"),
        ("at_s,prompt_tokens,output_tokens\n1,2,-3\n", "trace:2: -3 is no number of tokens; give 0 or more"),
        ("timestamp_s,client,prompt_tokens,output_tokens\n1,a,-2,3\n", "trace:2: -2 is no number of tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2030-01-01 00:00:59,-1,0\n", "trace:2: -1 is no number of tokens"),
        ("at_s,prompt_tokens,output_tokens\n1,2," + "3" * 200_000 + "\n", "trace cannot be read: field larger"),
        ('{"timestamp": 0}\n', "trace:1: .*input_length"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 1e999}\n', "trace:2: "),
        ('{"timestamp": 1e305, "input_length": 1, "output_length": 1}\n', "trace:1: the time is no number"),
        ('{"timestamp": 0, "input_length": -7, "output_length": 1}\n', "trace:1: -7 is no number of tokens"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Problem, match=message):
        rows_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'at_s,prompt_tokens,output_tokens,tenant\n0,1,1,fine\n1,1,1,"\x1b[31mred"\n',
            r"trace:3: tenant '\\x1b\[31mred' has characters that cannot be printed; call it otherwise",
        ),
        ("at_s,prompt_tokens,output_tokens,class\n0,1,1,a\tb\n", r"trace:2: class 'a\\tb' has characters"),
        ("timestamp_s,client,prompt_tokens,output_tokens\n0,a\u200fb,1,1\n", r"trace:2: tenant 'a\\u200fb' has"),
    ],
)
def test_names_can_be_printed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Problem, match=message):
        rows_of(tmp_path, text)


def test_a_packed_file_that_is_damaged_is_a_problem(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"at_s,prompt_tokens,output_tokens\n1,2,3\n" * 9, mtime=0))
    packed[10:14] = b"\xff" * 4
    (tmp_path / "t.csv.gz").write_bytes(packed)

    with pytest.raises(Problem, match=r"t\.csv\.gz cannot be read"):
        list(read_trace(tmp_path / "t.csv.gz"))


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"none\.csv cannot be read: No such file or directory; HEADGATE_DATA must be"):
        list(read_trace(tmp_path / "none.csv"))
