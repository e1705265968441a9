"""LoRA adapters for tests, in the format of PEFT: random, and strong enough to change every response.

The files are written without PEFT, which is not among the locked packages: a safetensors file is a JSON header with the
offset of each tensor, followed by the numbers.
"""

import json
import random
import struct
from array import array
from pathlib import Path

RANK = 8
_LAYERS = 6
"""Number of layers, from the first, that the adapter changes."""
_STRENGTH = 0.5
"""Standard deviation of the second factor. Together with `lora_alpha`, it makes the change as large as the output."""


def write_adapter(folder: Path, model: Path, *, seed: int) -> Path:
    """Write an adapter of the model to a new folder and return the folder."""
    config = json.loads((model / "config.json").read_text())
    chance = random.Random(seed)
    hidden = config["hidden_size"]
    width = hidden // config["num_attention_heads"]
    outputs = {"q_proj": hidden, "v_proj": width * config["num_key_value_heads"]}
    tensors: dict[str, tuple[list[int], bytes]] = {}
    for layer in range(min(_LAYERS, config["num_hidden_layers"])):
        for name, output in outputs.items():
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{path}.lora_A.weight"] = ([RANK, hidden], _numbers(chance, RANK * hidden, hidden**-0.5))
            tensors[f"{path}.lora_B.weight"] = ([output, RANK], _numbers(chance, output * RANK, _STRENGTH))
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(tensors))
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        "target_modules": sorted(outputs),
    }
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


def _numbers(chance: random.Random, count: int, deviation: float) -> bytes:
    return array("f", (chance.gauss(0.0, deviation) for _ in range(count))).tobytes()


def _safetensors(tensors: dict[str, tuple[list[int], bytes]]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())
