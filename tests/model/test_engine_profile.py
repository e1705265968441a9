"""Simulated engine profiles."""

from headgate.model.engine_profile import PROFILES

TINY = PROFILES["tiny"]


def test_smaller_kv_cache_reduces_context() -> None:
    small = TINY.with_kv_tokens(1_600)

    assert small.kv_blocks - small.watermark_blocks == 100
    assert small.context_tokens == 1_600
    assert small.fits(small.context_tokens)
    assert not small.fits(small.context_tokens + 1)


def test_larger_kv_cache_keeps_context() -> None:
    large = TINY.with_kv_tokens(64_000)

    assert large.kv_blocks > TINY.kv_blocks
    assert large.context_tokens == TINY.context_tokens


def test_kv_cache_has_at_least_one_block() -> None:
    assert TINY.with_kv_tokens(1).context_tokens == TINY.block_tokens
