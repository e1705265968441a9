"""The engine to calibrate: its type, its limits, and whether it serves other traffic."""

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from headgate.engines.engine_detection import DetectedEngine, DetectionError, detect_engine
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Probe
from headgate.model.engine_profile import EngineProfile
from headgate.planning.calibration import CalibrationError
from headgate.wire.escape import escaped

TIMEOUT_S: Final = 10.0
SEQUENCES_DEFAULT: Final = 256
"""vLLM's default, which vLLM does not report."""
CHUNK_DEFAULT: Final = 2_048
BLOCK_TOKENS: Final = 16
_SETTLE_S: Final = 0.3
_LOOKS: Final = 5
"""Number of scrapes, with a pause between them, until an idle engine must report that it is idle."""


@dataclass(frozen=True, slots=True)
class EngineSize:
    """Limits of the engine that the sweep must respect."""

    profile: EngineProfile
    """The limits. The time parameters are placeholders."""
    sources: Mapping[str, str]
    """Source of each limit: `option`, `reported` or `assumed`."""


class LiveEngine:
    def __init__(self, found: DetectedEngine, probe: Probe) -> None:
        self.found = found
        self._probe = probe

    @classmethod
    async def detect(cls, session: aiohttp.ClientSession, url: str, model: str, key: str | None) -> "LiveEngine":
        """Raises `CalibrationError` if there is no such engine."""
        try:
            found = await detect_engine(session, url, api_key=key, timeout_s=TIMEOUT_S)
        except DetectionError as error:
            hint = " (--api-key)" if "API key" in str(error) else ""
            raise CalibrationError(f"{url}: {error}{hint}") from error
        names = (*found.models, *found.adapters)
        if model not in names:
            raise CalibrationError(f'{url} serves {escaped(", ".join(names))}, not "{model}"; correct --model')
        probe = Probe(
            session,
            url,
            dialect=found.dialect,
            served_model=model,
            api_key=key,
            timeout_s=TIMEOUT_S,
            page_bytes_max=PAGE_BYTES_MAX,
        )
        return cls(found, probe)

    @property
    def description(self) -> str:
        version = "" if self.found.version is None else f" {escaped(self.found.version)}"
        return f"{self.found.dialect.name}{version}"

    async def size(self, args: argparse.Namespace, name: str) -> EngineSize:
        """The limits from the options or, failing that, from the engine. Raises `CalibrationError`."""
        reported = await self._probe.limits()
        sources: dict[str, str] = {}

        def limit(setting: str, own: int | None, assumed: int | None) -> int:
            given: int | None = getattr(args, setting)
            sources[setting] = "option" if given is not None else "assumed" if own is None else "reported"
            value = next((each for each in (given, own, assumed) if each is not None), None)
            if value is None:
                option = "--" + setting.replace("_", "-")
                raise CalibrationError(f"the engine does not report its {setting}; add {option} with its value")
            return value

        context = limit("context_tokens", reported.context_tokens, None)
        sequences = limit("sequences_max", reported.sequences_max or self.found.concurrency, SEQUENCES_DEFAULT)
        kv_tokens = limit("kv_tokens", reported.kv_tokens, sequences * context)
        chunk = limit("chunk_tokens", None, max(CHUNK_DEFAULT, sequences))
        block_tokens = limit("block_tokens", None, BLOCK_TOKENS)
        if chunk < sequences:
            raise CalibrationError(
                f"--chunk-tokens {chunk} is less than the {sequences} sequences of the engine, which need a token each "
                "in every step; raise it, or lower --sequences-max"
            )
        blocks = max(1, kv_tokens // block_tokens)
        profile = EngineProfile(
            name=name,
            step_ps=1,
            prefill_token_ps=1,
            decode_sequence_ps=1,
            kv_token_ps=1,
            attention_ps=1,
            chunk_tokens=chunk,
            sequences_max=sequences,
            kv_blocks=blocks,
            block_tokens=block_tokens,
            context_tokens=min(context, blocks * block_tokens),
            async_scheduling=bool(args.async_scheduling),
        )
        return EngineSize(profile, sources)

    async def open_requests(self) -> int | None:
        """Number of requests in the engine, according to its metrics. None if it does not report them."""
        telemetry = (await self._probe.scrape()).telemetry
        if telemetry is None or telemetry.running is None:
            return None
        return telemetry.running + (telemetry.waiting or 0)

    async def is_disturbed(self) -> bool:
        """Whether the engine has requests although the sweep has none open. Its gauges may lag behind."""
        for _ in range(_LOOKS):
            if not await self.open_requests():
                return False
            await asyncio.sleep(_SETTLE_S)
        return True
