"""Real engines with real weights for tests, which may also kill them.

`scripts/engine_env` finds or creates the engine's environment. If an engine is missing, the test fails rather than
being skipped. Each engine computes on one thread, because throughput collapses with more threads on shared cores.

    with llamacpp(parallel=4) as engine:
        ask(engine.url, model=engine.model)
        engine.process.kill()
"""

import json
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testing.ports import free_port
from testing.processes import ChildProcess

MODEL = "smollm2"
ROOT = Path(__file__).parents[1]

LLAMACPP_START_SECONDS_MAX = 180
VLLM_START_SECONDS_MAX = 600

# A small, fast model with random weights and the real model's tokenizer and chat template.
TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@dataclass(frozen=True, slots=True)
class RealEngine:
    url: str
    model: str
    process: ChildProcess


@contextmanager
def llamacpp(
    *,
    parallel: int = 4,
    ctx: int = 8192,
    batch: int = 64,
    port: int | None = None,
    embeddings: bool = False,
    reranking: bool = False,
) -> Generator[RealEngine]:
    """llama.cpp with `parallel` slots of `ctx / parallel` tokens, for text and optionally for embeddings, or for
    reranking, with meaningless scores.

    llama.cpp notices a disconnected client only between batches. A small batch keeps a long prompt cancellable.
    """
    port = port or free_port()
    command = llamacpp_command(port, parallel=parallel, ctx=ctx, batch=batch)
    command += ["--embeddings"] if embeddings else ["--reranking"] if reranking else []
    with run_engine("llamacpp", command, {}, port, LLAMACPP_START_SECONDS_MAX) as engine:
        yield engine


def llamacpp_command(port: int, *, parallel: int = 4, ctx: int = 8192, batch: int = 64) -> list[str]:
    folder = environment_of("llamacpp")
    command = [
        *(folder / "bin/python", ROOT / "scripts/serve_llamacpp.py"),
        *("--model", folder / "smollm2.gguf", "--name", MODEL),
        *("--port", port, "--parallel", parallel, "--ctx", ctx, "--batch", batch),
    ]
    return [str(part) for part in command]


@contextmanager
def vllm(
    *,
    max_num_seqs: int = 8,
    max_model_len: int = 2048,
    port: int | None = None,
    tiny: bool = False,
    adapters: Mapping[str, Path] | None = None,
    max_loras: int = 2,
    convert: str | None = None,
    polling: bool = True,
) -> Generator[RealEngine]:
    """vLLM on CPU with at most `max_num_seqs` concurrent requests. `tiny` is fast but produces meaningless text.

    By default, vLLM on CPU computes in a process of its own and polls for its results, which keeps a second core busy
    all the time. Without `polling`, it computes in the process of its scheduler.

    With `adapters`, it has these LoRA adapters by name, and others can be loaded. With `convert`, the model is
    converted to a pooling model of this kind, for instance `embed`.
    """
    folder = environment_of("vllm")
    port = port or free_port()
    with model_folder(folder / MODEL, tiny=tiny) as model:
        command = [
            *(folder / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port),
            *("--model", model, "--served-model-name", MODEL, "--load-format", "dummy" if tiny else "auto"),
            *("--dtype", "bfloat16", "--max-model-len", max_model_len, "--max-num-seqs", max_num_seqs),
            *("--scheduling-policy", "priority", "--enable-prefix-caching", "--enforce-eager"),
            *(("--runner", "pooling", "--convert", convert) if convert else ()),
            *(() if convert else ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")),
            *(() if polling else ("--distributed-executor-backend", "uni")),
        ]
        variables = vllm_variables(folder)
        if not polling:  # Otherwise vLLM replaces the executor.
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if adapters is not None:
            modules = [f"{name}={path}" for name, path in adapters.items()]
            command += ["--enable-lora", "--max-loras", max_loras, "--max-lora-rank", 8, "--lora-modules", *modules]
            variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        with run_engine("vllm", command, variables, port, VLLM_START_SECONDS_MAX) as engine:
            yield engine


@contextmanager
def vllm_whisper(*, max_num_seqs: int = 4) -> Generator[RealEngine]:
    """vLLM on CPU with a tiny Whisper model. Its transcripts are meaningless."""
    folder, port = environment_of("vllm"), free_port()
    command = [
        *(folder / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port),
        *("--model", folder / "whisper", "--served-model-name", MODEL, "--load-format", "dummy"),
        *("--dtype", "bfloat16", "--max-num-seqs", max_num_seqs, "--enforce-eager"),
    ]
    with run_engine("vllm", command, vllm_variables(folder), port, VLLM_START_SECONDS_MAX) as engine:
        yield engine


def environment_of(engine: str) -> Path:
    """Directory of the engine's environment. Progress goes to stderr, which pytest shows on failure."""
    printed = subprocess.run(
        [ROOT / "scripts/engine_env", engine], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return Path(printed.splitlines()[-1])


@contextmanager
def run_engine(
    name: str, command: Sequence[str | Path | int], variables: Mapping[str, str], port: int, start_seconds_max: float
) -> Generator[RealEngine]:
    url = f"http://127.0.0.1:{port}"
    with ChildProcess(name, [str(part) for part in command], variables) as process:
        process.wait_until_ok(f"{url}/health", start_seconds_max)
        yield RealEngine(url, MODEL, process)


@contextmanager
def model_folder(real: Path, *, tiny: bool) -> Generator[Path]:
    if not tiny:
        yield real
        return
    with tempfile.TemporaryDirectory(prefix="headgate-tiny-") as name:
        folder = Path(name)
        for file in real.iterdir():
            if file.suffix != ".safetensors" and file.name != "config.json":
                (folder / file.name).symlink_to(file)
        config = json.loads((real / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | TINY))
        yield folder


def vllm_variables(folder: Path) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        # Otherwise the first request for logprobs triggers a compilation that blocks all requests for 30 seconds.
        "TORCHDYNAMO_DISABLE": "1",
    }
