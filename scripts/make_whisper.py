"""Creates a tiny Whisper model with a byte tokenizer. vLLM serves it with random weights (`--load-format dummy`).

Its transcripts are meaningless, but all else is as in a real model: the audio is decoded, resampled and encoded, and
the decoder generates tokens up to the requested maximum.

Usage: make_whisper.py FOLDER     (in vLLM's environment: transformers)
"""

import sys
from pathlib import Path

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

END = "<|endoftext|>"
START = "<|startoftranscript|>"
SPECIAL = (
    END,
    START,
    *(f"<|{language}|>" for language in LANGUAGES),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
TIMESTAMPS = [f"<|{0.02 * step:.2f}|>" for step in range(1501)]
WIDTH = 64


def make_tokenizer() -> WhisperTokenizer:
    names = [*sorted(ByteLevel.alphabet()), *SPECIAL]
    tokenizer = WhisperTokenizer(vocab={name: number for number, name in enumerate(names)}, merges=[])
    tokenizer.add_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, special=False) for name in TIMESTAMPS])
    return tokenizer


def main(folder: Path) -> None:
    tokenizer = make_tokenizer()
    end, start = (tokenizer.convert_tokens_to_ids(name) for name in (END, START))
    tokens = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    config = WhisperConfig(
        architectures=["WhisperForConditionalGeneration"],
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": WIDTH for part in ("encoder", "decoder")},
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **tokens,
    )
    for part in (tokenizer, WhisperFeatureExtractor(), config, GenerationConfig(max_length=448, **tokens)):
        part.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_whisper.py FOLDER")
    main(Path(sys.argv[1]))
