"""Tests for the batching benchmark's results and its small model."""

import struct
from pathlib import Path

from bench.batching import (
    ALONE,
    BUDGET_MS,
    JUDGED,
    RATIO_MIN,
    Curve,
    Point,
    Side,
    judged_figures,
    missed_thresholds,
    table_of,
)
from bench.small_gguf import HIDDEN, LAYERS, VOCABULARY, shrink

SIDES = [Side(name, 1, "m", "/v1/embeddings") for name in (ALONE, "hold 5 ms", JUDGED, "direct, by 32")]


def a_curve(*figures: tuple[float, float]) -> Curve:
    """Build a curve from each side's inputs per second and 99th percentile."""
    return {
        (side.name, 32): Point([rate], [p99_ms / 2], [p99_ms], [1_000 / rate])
        for side, (rate, p99_ms) in zip(SIDES, figures, strict=True)
    }


def test_comparison_uses_fixed_settings_regardless_of_results() -> None:
    curve = a_curve((100, 50), (400, 10), (210, 60), (900, 10))

    assert judged_figures(curve, 32) == {
        "requests_per_s_ratio": 2.1,
        "p99_ms": 60,
        "budget_ms": BUDGET_MS,
        "engine_cpu_ratio": 2.1,
    }


def test_comparison_computes_ratios_per_round() -> None:
    curve = a_curve((100, 50), (400, 10), (210, 60), (900, 10))
    curve[ALONE, 32].inputs_per_s = [100.0, 10.0, 50.0]
    curve[JUDGED, 32].inputs_per_s = [200.0, 30.0, 50.0]
    curve[ALONE, 32].cpu_ms, curve[JUDGED, 32].cpu_ms = [9.0, 4.0, 2.0], [3.0, 4.0, 1.0]

    figures = judged_figures(curve, 32)
    assert (figures["requests_per_s_ratio"], figures["engine_cpu_ratio"]) == (2.0, 2.0)


def test_missed_thresholds_reports_each_missed_limit() -> None:
    kept = {"requests_per_s_ratio": RATIO_MIN, "p99_ms": BUDGET_MS, "budget_ms": BUDGET_MS}

    assert missed_thresholds(kept) == []
    assert len(missed_thresholds(kept | {"requests_per_s_ratio": RATIO_MIN - 0.1})) == 1
    assert len(missed_thresholds(kept | {"p99_ms": BUDGET_MS + 1})) == 1


def test_table_has_row_for_every_side() -> None:
    table = table_of(a_curve((100, 50), (210, 60), (400, 70), (900, 80)), SIDES, [32])

    assert [line.split()[-4:] for line in table.splitlines()[2:]] == [
        ["100", "25.0", "50.0", "10.00"],
        ["210", "30.0", "60.0", "4.76"],
        ["400", "35.0", "70.0", "2.50"],
        ["900", "40.0", "80.0", "1.11"],
    ]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def a_gguf() -> bytes:
    """Build a file with a long vocabulary, a layer count and no tensors."""
    tokens = b"".join(text(f"token {number}") for number in range(2_000))
    fields = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.block_count") + struct.pack("<II", 4, 30),
        text("general.file_type") + struct.pack("<II", 4, 3),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2_000) + tokens,
        text("tokenizer.ggml.token_type") + struct.pack("<IIQ2000i", 9, 5, 2_000, *range(2_000)),
    ]
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(fields)) + b"".join(fields)


def test_small_model_keeps_vocabulary_start_and_has_few_weights(tmp_path: Path) -> None:
    real, small, again = (tmp_path / name for name in ("real", "small", "again"))
    real.write_bytes(a_gguf())
    shrink(real, small)
    shrink(real, again)
    data = small.read_bytes()

    assert data == again.read_bytes()
    assert struct.unpack_from("<4sIQQ", data) == (b"GGUF", 3, 2 + 9 * LAYERS, 4)
    assert text("llama.block_count") + struct.pack("<II", 4, LAYERS) in data
    assert text(f"token {VOCABULARY - 1}") in data
    assert text(f"token {VOCABULARY}") not in data
    assert len(data) > HIDDEN * VOCABULARY
    assert len(data) % 32 == 0
