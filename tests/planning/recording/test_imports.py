"""Import of access logs: OpenTelemetry spans, LiteLLM's spend logs and plain CSV."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.planning.recording import imported_values as values
from headgate.planning.recording.bounded_text import bounded_lines
from headgate.planning.recording.import_csv import PLAIN_COLUMNS, ImportCounts, csv_rows, parse_columns
from headgate.planning.recording.import_litellm import litellm_rows
from headgate.planning.recording.import_otel import OBJECTS_MAX, otel_rows
from headgate.ports.traffic import TrafficRow
from headgate.simulation.workload.error import WorkloadError

START_NS = 1_763_546_400_000_000_000


def a_file(folder: Path, content: str | bytes, name: str = "log") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# OpenTelemetry


def an_attribute(key: str, value: object) -> dict[str, Any]:
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    # OTLP encodes 64-bit integers as text.
    return {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}


def a_span(span_id: str = "01", parent: str = "", after_s: float = 0, **attributes: object) -> dict[str, Any]:
    usual = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "llama",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
    }
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    found = {name: value for name, value in (usual | named).items() if value is not None}
    return {
        "traceId": "00" * 16,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": "chat llama",
        "kind": 3,
        "startTimeUnixNano": str(START_NS + round(after_s * 1e9)),
        "endTimeUnixNano": str(START_NS + 10**9),
        "attributes": [an_attribute(name, value) for name, value in found.items()],
    }


def traces(*spans: dict[str, Any], service: str = "shop") -> dict[str, Any]:
    resource = {"attributes": [an_attribute("service.name", service)]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def from_otel(folder: Path, content: str | bytes, **columns: str) -> tuple[list[TrafficRow], int]:
    counts = ImportCounts()
    named = {name: (column,) for name, column in columns.items()}
    return list(otel_rows(a_file(folder, content), named, counts)), counts.skipped


def test_span_of_a_request_is_imported(tmp_path: Path) -> None:
    span = a_span(gen_ai__usage__cache_read__input_tokens=64)
    [row], skipped = from_otel(tmp_path, json.dumps(traces(span)))

    assert row == TrafficRow(
        START_NS // 1_000,
        api="chat",
        model="llama",
        tenant="shop",
        prompt_tokens=100,
        output_tokens=20,
        cached_tokens=64,
    )
    assert skipped == 0


def test_collector_file_has_one_object_per_line(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(traces(a_span(after_s=each))) for each in range(3)) + "\n\n"
    rows, _ = from_otel(tmp_path, lines)
    assert [row.at_us - START_NS // 1_000 for row in rows] == [0, 1_000_000, 2_000_000]

    pretty, _ = from_otel(tmp_path, json.dumps(traces(a_span()), indent=2))
    assert pretty == rows[:1]


def test_names_of_earlier_conventions_are_known(tmp_path: Path) -> None:
    old = {"gen_ai__usage__input_tokens": None, "gen_ai__usage__output_tokens": None, "gen_ai__operation__name": None}
    span = a_span(**old, gen_ai__usage__prompt_tokens=7, gen_ai__usage__completion_tokens=3)
    [row], _ = from_otel(tmp_path, json.dumps(traces(span)))

    assert (row.api, row.prompt_tokens, row.output_tokens) == ("chat", 7, 3)


def test_only_the_outermost_request_counts(tmp_path: Path) -> None:
    agent = a_span("0a", gen_ai__operation__name="invoke_agent")
    request, attempt = a_span("0b", "0a"), a_span("0c", "0b")
    tool = a_span("0d", "0a", gen_ai__operation__name="execute_tool")
    rows, skipped = from_otel(tmp_path, json.dumps(traces(agent, request, attempt, tool)))

    assert (len(rows), skipped) == (1, 3)


def test_failed_span_is_a_failed_request(tmp_path: Path) -> None:
    failed = a_span() | {"status": {"code": 2}}
    rows, _ = from_otel(tmp_path, json.dumps(traces(failed, a_span("02", error__type="timeout"), a_span("03"))))

    assert [row.outcome for row in rows] == ["engine_error", "engine_error", "completed"]


def test_attributes_can_be_chosen(tmp_path: Path) -> None:
    span = a_span(team="red", gen_ai__operation__name="embeddings")
    [row], _ = from_otel(tmp_path, json.dumps(traces(span)), tenant="team", **{"class": "service.name"})

    assert (row.tenant, row.service_class, row.api) == ("red", "shop", "embeddings")


# LiteLLM

LITELLM = (
    "request_id,call_type,api_key,spend,total_tokens,prompt_tokens,completion_tokens,startTime,endTime,"
    "completionStartTime,model,model_group,user,metadata,cache_hit,team_id,messages,status\n"
)


def from_litellm(folder: Path, *rows: str) -> tuple[list[TrafficRow], int]:
    counts = ImportCounts()
    return list(litellm_rows(a_file(folder, LITELLM + "\n".join(rows)), {}, counts)), counts.skipped


def test_spend_log_is_imported(tmp_path: Path) -> None:
    metadata = '"{""usage_object"": {""prompt_tokens_details"": {""cached_tokens"": 64}}}"'
    [row], _ = from_litellm(
        tmp_path,
        "chatcmpl-1,acompletion,88dc28,0.1,120,100,20,2026-11-19 10:00:00.25,2026-11-19 10:00:02,"
        f'2026-11-19 10:00:01,openai/gpt,gpt,ann,{metadata},False,red,"[{{""role"": ""user""}}]",success',
    )

    assert row == TrafficRow(
        values.time_us("2026-11-19T10:00:00.25Z"),
        api="chat",
        model="gpt",
        tenant="red",
        stream=True,
        prompt_tokens=100,
        output_tokens=20,
        cached_tokens=64,
    )


def test_spend_logs_of_other_calls(tmp_path: Path) -> None:
    at = "2026-11-19 10:00:00+00,2026-11-19 10:00:02+00,2026-11-19 10:00:02+00"
    rows, skipped = from_litellm(
        tmp_path,
        f"1,aembedding,88dc28,0,9,9,0,{at},e,,ann,{{}},,,,success",
        f"2,aimage_generation,88dc28,0,0,0,0,{at},i,,,,,,,success",
        f"3,anthropic_messages,88dc28,0,9,9,1,{at},m,,,not json,,,,failure",
    )

    assert [(row.api, row.tenant, row.stream, row.outcome) for row in rows] == [
        ("embeddings", "ann", False, "completed"),
        ("messages", "88dc28", False, "engine_error"),
    ]
    assert skipped == 1


# CSV


def from_csv(folder: Path, content: str | bytes, columns: str = "") -> list[TrafficRow]:
    named = parse_columns(columns) if columns else {}
    return list(csv_rows(a_file(folder, content), {**PLAIN_COLUMNS, **named}, ImportCounts()))


def test_columns_are_found_by_name_or_by_mapping(tmp_path: Path) -> None:
    assert from_csv(tmp_path, "at,prompt_tokens,output_tokens,stream\n1.5,10,2,true\n") == [
        TrafficRow(1_500_000, prompt_tokens=10, output_tokens=2, stream=True)
    ]
    rows = from_csv(
        tmp_path,
        '\ufeffstarted,in,out,team,code\n2026-11-19T10:00:00+01:00,10,,"red, green",429\n',
        "at=started,prompt_tokens=in,output_tokens=out,tenant=team,outcome=code",
    )
    assert rows == [
        TrafficRow(values.time_us("2026-11-19T09:00:00"), prompt_tokens=10, tenant="red, green", outcome="rate_limited")
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("at", '"at" is invalid; use FIELD=COLUMN with one of at, prompt_tokens'),
        ("at=", '"at=" is invalid'),
        ("when=x", '"when=x" is invalid'),
        ("at=x,at=y", "at is repeated"),
    ],
)
def test_invalid_mapping_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        parse_columns(text)


@pytest.mark.parametrize(
    ("text", "at_us"),
    [
        ("0", 0),
        ("1.5", 1_500_000),
        ("1763546400", 1_763_546_400_000_000),
        ("1763546400250", 1_763_546_400_250_000),
        ("1763546400250001", 1_763_546_400_250_001),
        ("1763546400250001999", 1_763_546_400_250_002),
        ("2025-11-19T10:00:00Z", 1_763_546_400_000_000),
        ("2025-11-19 12:00:00.25+02", 1_763_546_400_250_000),
    ],
)
def test_times_have_several_formats(text: str, at_us: int) -> None:
    assert values.time_us(text) == at_us


# Hostile files

HEADER = "at,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", r':1: no column for at \(looked for at, at_s, .*--columns at=COLUMN,.*the file has "a", "b"'),
        (HEADER + "nan,1,1\n", ':2: at is "nan", not a time'),
        (HEADER + "inf,1,1\n", ':2: at is "inf", not a time'),
        (HEADER + "1e300,1,1\n", "within 285 years"),
        (HEADER + "9" * 5_000 + ",1,1\n", ":2: at is "),
        (HEADER + "1,-1,1\n", ':2: prompt_tokens is "-1", not a whole number'),
        (HEADER + "1,NaN,1\n", ':2: prompt_tokens is "NaN"'),
        (HEADER + "1,1,1e3\n", ':2: output_tokens is "1e3"'),
        (HEADER + "1,99999999999,1\n", "from 0 to"),
        (HEADER + "1,٣,1\n", "prompt_tokens is"),
        (HEADER + "1,\x1b[31m,1\n", r":2: prompt_tokens is '\\x1b\[31m'"),
        (HEADER + "yesterday,1,1\n", "or a date such as"),
        (b"\x89PNG\r\n\x1a\n\0\0\xff", ":1: the line is not UTF-8 text"),
        (",".join(f"c{number}" for number in range(1_001)) + "\n", "1001 columns, more than 1000"),
    ],
)
def test_invalid_csv_is_rejected_with_its_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        from_csv(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "missing required field `resourceSpans`"),
        ("[" * 100_000 + "}", "expected OTLP JSON"),
        ('{"resourceSpans":' + "[" * 100_000 + "}", "expected OTLP JSON"),
        ('{"resourceSpans": 1}', "Expected `array`"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": NaN}]}]}]}', "JSON is malformed"),
        ('{"resourceSpans":[]', "truncated"),
        (b"\x1f\x8b\xff\xfe", "not UTF-8"),
        (json.dumps(traces(a_span() | {"startTimeUnixNano": "-5"})), 'startTimeUnixNano is "-5", not a time'),
        (json.dumps(traces(a_span() | {"startTimeUnixNano": "9" * 30})), "not a time"),
        (json.dumps(traces(a_span(gen_ai__usage__input_tokens=-1))), 'input_tokens is "-1", not a whole number'),
        (json.dumps(traces(a_span(gen_ai__usage__input_tokens="many"))), 'input_tokens is "many"'),
    ],
)
def test_invalid_spans_are_rejected_with_their_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        from_otel(tmp_path, content)


def test_missing_and_truncated_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="No such file or directory; specify an existing file"):
        list(bounded_lines(tmp_path / "missing"))
    whole = gzip.compress(HEADER.encode() * 100)
    for content in (whole[:-9], b"no gzip", whole[:20] + b"\0" * 20):
        with pytest.raises(WorkloadError, match=r"cannot be decompressed: .*; check that it is a complete .gz file"):
            list(bounded_lines(a_file(tmp_path, content, "log.gz")))


def large_rows() -> Iterator[bytes]:
    """Endless quoted values that span lines: each line ends one value and begins another."""
    yield HEADER.encode() + b'1,1,"'
    for _ in range(40):
        yield b'x","' + b"y" * 1_000_000 + b"\n"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([b"x" * 1_000_000] * 40, "longer than"),
        ([b"a," * 500_000] * 40, "longer than"),
        (list(large_rows()), "larger than .* check for a missing quotation mark"),
        ([HEADER.encode(), b'1,1,"', *[b"z" * 1_000_000] * 40], "longer than|field larger than"),
    ],
    ids=["no line break", "no end of columns", "values across lines", "no closing quote"],
)
def test_compressed_bomb_is_rejected_in_bounded_memory(tmp_path: Path, lines: list[bytes], problem: str) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.writelines(lines)
    tracemalloc.start()
    try:
        with pytest.raises(WorkloadError, match=problem):
            list(csv_rows(path, PLAIN_COLUMNS, ImportCounts()))
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


def test_line_of_many_objects_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=f"more than {OBJECTS_MAX} JSON objects in one line; reduce"):
        from_otel(tmp_path, '{"resourceSpans":[' + "{}," * OBJECTS_MAX + "{}]}")


@pytest.mark.parametrize("part", ["{},", '{"scopeSpans":[{"spans":[{}]}]},', '{"resource":{"attributes":[{}]}},'])
def test_object_takes_a_bounded_amount_of_memory(tmp_path: Path, part: str) -> None:
    count = 50_000
    path = a_file(tmp_path, '{"resourceSpans":[' + part * (count // part.count("{")) + "{}]}")
    tracemalloc.start()
    try:
        assert list(otel_rows(path, {}, ImportCounts())) == []
        assert tracemalloc.get_traced_memory()[1] < count * 500
    finally:
        tracemalloc.stop()


def test_million_columns_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="1000000 columns, more than 1000") as error:
        from_csv(tmp_path, ",".join(["c"] * 1_000_000) + "\n")
    assert len(str(error.value)) < 1_000
