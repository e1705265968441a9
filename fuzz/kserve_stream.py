"""Fuzz target: a Triton stream gives the same response however its reads are split, and buffers at most one event."""

from fuzz.cuts import cut
from headgate.model.ticket import Api
from headgate.wire.kserve.generate_stream import ChunkTranslator, GeneratedText, TranslationContext, whole_body
from headgate.wire.sse import EVENT_BYTES_MAX

SETTING = TranslationContext(
    api=Api.CHAT, answer_id="a", created=1, model="m", text_output="text_output", prompt_bytes=4, output_tokens_max=9
)
_BYTES_MAX = 512


def one_input(data: bytes) -> None:
    assert _passed_on([data]) == _passed_on(cut(data))
    assert _assembled([data]) == _assembled(cut(data))


def _passed_on(pieces: list[bytes]) -> bytes:
    chunks = ChunkTranslator(SETTING)
    passed = b"".join([chunks.feed(piece) for piece in pieces]) + chunks.finish()
    assert passed == b"" or passed.endswith(b"\n\n"), "the output ends at an event boundary"
    return passed


def _assembled(pieces: list[bytes]) -> bytes | str:
    generated = GeneratedText(SETTING, bytes_max=_BYTES_MAX)
    for piece in pieces:
        generated.feed(piece)
        assert generated.held_bytes <= EVENT_BYTES_MAX
    assert sum(len(text) for text in generated.texts) <= _BYTES_MAX, "the size of the response is bounded"
    return generated.error or whole_body(generated, SETTING)
