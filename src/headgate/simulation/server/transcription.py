"""Parses transcription requests to the simulated engine, and encodes its responses as vLLM 0.32 does.

The audio is not decoded. The simulated engine counts it as the gateway estimates it (`wire/audio_length.py`).
"""

from hashlib import blake2b
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.simulation.server.error_response import bad_request, model_not_found, prompt_too_long, validation_error
from headgate.simulation.server.options import EngineOptions
from headgate.simulation.server.request import Prompt, SimulatedRequest
from headgate.wire.audio_length import TOKENS_PER_SECOND
from headgate.wire.fields import BadRequest
from headgate.wire.multipart import MultipartParser, read_boundary
from headgate.wire.transcription import TranscriptionBody

_FORMATS: Final = ("json", "text", "verbose_json")
_LIMIT: Final = "max_completion_tokens"
_INTEGER: Final = msgspec.json.Decoder(int, strict=False)
_ENCODER: Final = msgspec.json.Encoder()


def parse_transcription(raw: bytes, content_type: bytes, api: Api, options: EngineOptions) -> SimulatedRequest:
    """Parses a form. Raises `ErrorResponse`."""
    try:
        parser = MultipartParser(raw, read_boundary(content_type))
        while not parser.parse_step():
            pass
        body = TranscriptionBody.of(raw, api, parser.parts)
    except BadRequest as bad:
        raise validation_error(bad.message, bad.param or "") from None
    if body.model != options.model:
        raise model_not_found(body.model, options.model)
    if body.format not in _FORMATS:
        raise bad_request("Currently only support response_format: `text`, `json` or `verbose_json`", None)
    if body.stream and body.format == "verbose_json":
        raise bad_request("verbose_json format doesn't support streaming case", None)
    tokens, context = max(1, body.prompt_bytes // BYTES_PER_TOKEN), options.profile.context_tokens
    if tokens >= context:
        raise prompt_too_long(context, tokens)
    fields = body.fields()
    asked = _INTEGER.decode(fields[_LIMIT]) if _LIMIT in fields else context
    file = memoryview(raw)[body.file.start : body.file.end]
    return SimulatedRequest(
        api=api,
        prompts=[Prompt(tokens, (), blake2b(file, digest_size=16).digest())],
        choices_per_prompt=1,
        stream=body.stream,
        include_usage=body.wants_usage,
        continuous_usage=False,
        output_tokens_max=min(asked, context - tokens),
        output_tokens_min=0,
        ignores_eos=False,
        priority=0,
        is_verbose=body.format == "verbose_json",
    )


def transcript_body(request: SimulatedRequest, text: str, *, reports_usage: bool) -> bytes:
    seconds = -(-request.prompt_tokens // TOKENS_PER_SECOND)
    if request.is_verbose:
        return _ENCODER.encode(
            {"duration": float(seconds), "language": "en", "text": text, "segments": [], "words": None}
        )
    usage = {"usage": {"type": "duration", "seconds": seconds}} if reports_usage else {}
    return _ENCODER.encode({"text": text, **usage})
