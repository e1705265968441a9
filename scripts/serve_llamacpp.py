"""Run a real llama.cpp server for tests and benchmarks.

The package xllamacpp contains llama.cpp's HTTP server. The server listens immediately and returns 503 until the model
is loaded. It has no graceful shutdown: signals keep their default action and terminate the process.
"""

import argparse
import signal
from pathlib import Path

import xllamacpp


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serves a GGUF model on the loopback interface.")
    parser.add_argument("--model", required=True, type=Path, help="the GGUF file")
    parser.add_argument("--name", required=True, help="the model name that clients use")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--parallel", required=True, type=int, help="number of slots (concurrent requests)")
    parser.add_argument("--ctx", required=True, type=int, help="context tokens, divided equally among the slots")
    parser.add_argument("--batch", required=True, type=int, help="maximum number of tokens per step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--embeddings", action="store_true", help="also serve embeddings")
    parser.add_argument("--reranking", action="store_true", help="serve reranking instead of texts")
    return parser.parse_args()


def parameters(given: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(given.model)
    params.model_alias = {given.name}
    params.hostnames = ["127.0.0.1"]
    params.port = given.port
    params.n_parallel = given.parallel
    params.n_ctx = given.ctx
    params.n_batch = params.n_ubatch = given.batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    # Otherwise the prompts of idle slots are cached in up to 8 GiB of additional memory.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    return params


def serve_reranking(params: xllamacpp.CommonParams) -> None:
    """Enable reranking. The scores of a model that was not trained for it are meaningless."""
    serve_embeddings(params)
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def serve_embeddings(params: xllamacpp.CommonParams) -> None:
    """Enable embeddings. Text models do not configure pooling, and without it clients would get one vector per token.

    A pooled text is processed in one step, so the longest text that fits in a slot must fit in a batch. With one cache
    per slot, llama.cpp splits texts of different lengths in the same step and pools only a part of each, so a list of
    texts yields different vectors than single requests do. A unified cache avoids the split.
    """
    params.kv_unified = True
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.n_batch = params.n_ubatch = params.n_ctx // params.n_parallel


def main() -> None:
    given = arguments()
    params = parameters(given)
    if given.embeddings:
        serve_embeddings(params)
    if given.reranking:
        serve_reranking(params)
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
