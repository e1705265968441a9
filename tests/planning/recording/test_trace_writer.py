"""Writing a trace and reading it again."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.planning.recording.pseudonyms import TenantPseudonyms
from headgate.planning.recording.trace_writer import COUNTED_MAX, OTHER, TraceWriter, trace_file
from headgate.ports.traffic import TrafficRow
from headgate.simulation.workload.recorded_trace import TraceHeader
from headgate.simulation.workload.trace_files import read_trace
from headgate.simulation.workload.trace_row import TraceRow


def written(*rows: TrafficRow, **options: Any) -> list[dict[str, Any]]:
    file = io.BytesIO()
    writer = TraceWriter(file, TraceHeader(), TenantPseudonyms(keep_names=True), **options)
    for row in rows:
        writer.add(row)
    writer.finish()
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_header_and_end_describe_the_trace() -> None:
    header, _, end = written(TrafficRow(5, prompt_tokens=7, output_tokens=3, cached_tokens=2, stream=True))

    assert header == {
        "headgate_trace": 1,
        "time_unit": "us",
        "prefix_block_tokens": 512,
        "source": "",
        "tenants": "hashed",
    }
    assert end["end"] | {"dropped": 0, "complete": True} == end["end"]
    assert (end["end"]["requests"], end["end"]["prompt_tokens"], end["end"]["last_at_us"]) == (1, 7, 5)


def test_usual_values_are_left_out() -> None:
    _, line, _ = written(TrafficRow(5, prompt_tokens=7, output_tokens=3, stream=True))
    assert line == {"at_us": 5, "prompt_tokens": 7, "output_tokens": 3}

    _, line, _ = written(
        TrafficRow(
            5,
            api="embeddings",
            model="m",
            service_class="batch",
            tenant="acme",
            prompt_tokens=7,
            outcome="queue_full",
            retries=2,
            stages=(("retrieval", 12),),
        )
    )
    assert line == {
        "at_us": 5,
        "prompt_tokens": 7,
        "api": "embeddings",
        "model": "m",
        "class": "batch",
        "tenant": "acme",
        "stream": False,
        "outcome": "queue_full",
        "retries": 2,
        "stages": [["s1", 12]],
    }


def test_prompt_that_was_not_computed_has_an_estimated_size() -> None:
    _, line, _ = written(TrafficRow(0, prompt_bytes=4_000, outcome="shed"))
    assert line["prompt_tokens"] == 1_000


def test_unknown_outcome_is_an_internal_error_and_names_are_printable() -> None:
    _, line, _ = written(TrafficRow(0, outcome="canary", model="m\x1b]0;x\x07", service_class="a\nb"))
    assert (line["outcome"], line["model"], line["class"]) == ("internal_error", "m\\x1b]0;x\\x07", "a\\x0ab")


def test_counts_of_names_are_bounded() -> None:
    writer = TraceWriter(io.BytesIO(), TraceHeader(), TenantPseudonyms())
    for number in range(COUNTED_MAX + 5):
        writer.add(TrafficRow(0, model=f"m{number}"))

    assert (len(writer.models), writer.models[OTHER]) == (COUNTED_MAX + 1, 5)


def test_trace_has_a_maximum_number_of_requests() -> None:
    writer = TraceWriter(io.BytesIO(), TraceHeader(), TenantPseudonyms(), requests_max=2)
    writer.add(TrafficRow(0))
    assert not writer.is_full
    writer.add(TrafficRow(1))
    assert writer.is_full


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_file_replaces_another_only_if_the_recording_succeeds(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"earlier")
    with pytest.raises(ZeroDivisionError), trace_file(path) as file:
        file.write(b"x" * (1 // 0))
    assert path.read_bytes() == b"earlier"
    with trace_file(path) as file:
        file.write(b"whole")
    content = path.read_bytes()
    assert (gzip.decompress(content) if name.endswith(".gz") else content) == b"whole"
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_reader_gives_unfinished_requests_the_usual_output(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with trace_file(path) as file:
        writer = TraceWriter(file, TraceHeader(), TenantPseudonyms(keep_names=True))
        for row in (
            TrafficRow(0, prompt_tokens=9, outcome="shed", service_class="c", tenant="t"),
            TrafficRow(1, prompt_tokens=9, output_tokens=50, service_class="c", tenant="t"),
            TrafficRow(2, prompt_tokens=9, output_tokens=4, outcome="cancelled", service_class="c", tenant="t"),
            TrafficRow(3, prompt_tokens=9, output_tokens=70, outcome="cancelled", service_class="c", tenant="t"),
            TrafficRow(4, prompt_tokens=9, outcome="shed", service_class="other", tenant="t", retries=1),
        ):
            writer.add(row)
        writer.finish()

    rows = list(read_trace(path))
    assert [row.output_tokens for row in rows] == [0, 50, 50, 70, 0]
    assert rows[4] == TraceRow(4_000, 9, 0, "other", "t", (), None, "chat", stream=False, previous_tries=1)
