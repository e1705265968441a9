"""Supported engine types, by their name in the configuration."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect
from headgate.engines.llamacpp import LLAMACPP
from headgate.engines.openai_compatible import OPENAI_COMPATIBLE
from headgate.engines.provider import PROVIDER
from headgate.engines.sglang import SGLANG
from headgate.engines.triton.dialect import TRITON, TRITON_TRTLLM
from headgate.engines.trtllm import TRTLLM
from headgate.engines.vllm import VLLM

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        dialect.name: dialect
        for dialect in (OPENAI_COMPATIBLE, VLLM, SGLANG, TRTLLM, LLAMACPP, TRITON_TRTLLM, TRITON, PROVIDER)
    }
)


def engines_reporting_kv() -> frozenset[str]:
    """Returns the names of the engines that report their KV capacity."""
    return frozenset(name for name, dialect in DIALECTS.items() if dialect.reports_kv)
