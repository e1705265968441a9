"""How does a llama-architecture GGUF file become a folder that vLLM loads?

llama.cpp and vLLM then serve the same weights, and only one model is downloaded. Three things differ between the two
formats: the weights are quantized in a GGUF file; tensors have other names; and rows of the query and key projections
are stored in another order, because llama.cpp rotates neighbouring rows where Hugging Face rotates the two halves.

Usage: gguf_to_hf.py MODEL.gguf FOLDER     (in vLLM's environment: gguf, numpy, safetensors, torch, transformers)
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def metadata(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        sys.exit(f"gguf_to_hf: the file says nothing about {key!r}")
    value = field.contents()
    return value.item() if isinstance(value, np.generic) else value


def configuration(reader: gguf.GGUFReader) -> dict[str, Any]:
    architecture = metadata(reader, "general.architecture")
    if architecture != "llama":
        sys.exit(f"gguf_to_hf: the architecture is {architecture!r}; only 'llama' is understood")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "vocab_size": len(metadata(reader, "tokenizer.ggml.tokens")),
        "bos_token_id": metadata(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata(reader, "tokenizer.ggml.eos_token_id"),
        "num_hidden_layers": metadata(reader, "llama.block_count"),
        "hidden_size": metadata(reader, "llama.embedding_length"),
        "intermediate_size": metadata(reader, "llama.feed_forward_length"),
        "max_position_embeddings": metadata(reader, "llama.context_length"),
        "num_attention_heads": metadata(reader, "llama.attention.head_count"),
        "num_key_value_heads": metadata(reader, "llama.attention.head_count_kv"),
        "rms_norm_eps": metadata(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata(reader, "llama.rope.freq_base"),
    }


def hf_tensor_name(name: str) -> str:
    if layer := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        return f"model.layers.{layer[1]}.{PER_LAYER[layer[2]]}.weight"
    return f"{WHOLE_MODEL[name.removesuffix('.weight')]}.weight"


def split_rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of one head: from a0 b0 a1 b1 ... to a0 a1 ... b0 b1 ..."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return pairs.transpose(0, 2, 1, 3).reshape(weight.shape)


def convert_tensor(tensor: gguf.ReaderTensor, config: dict[str, Any]) -> torch.Tensor:
    # GGUF counts dimensions from the fastest, numpy from the slowest.
    weight = gguf.dequantize(tensor.data, tensor.tensor_type).reshape([int(size) for size in tensor.shape[::-1]])
    if tensor.name.endswith(".attn_q.weight"):
        weight = split_rotary_halves(weight, config["num_attention_heads"])
    elif tensor.name.endswith(".attn_k.weight"):
        weight = split_rotary_halves(weight, config["num_key_value_heads"])
    return torch.tensor(weight, dtype=torch.bfloat16)


def convert(source: Path, folder: Path) -> None:
    reader = gguf.GGUFReader(source)
    config = configuration(reader)
    folder.mkdir(parents=True)
    weights = {hf_tensor_name(tensor.name): convert_tensor(tensor, config) for tensor in reader.tensors}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n")
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(str(folder))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: gguf_to_hf.py MODEL.gguf FOLDER")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
