"""How is one real llama.cpp server started from Python?

The package xllamacpp holds llama.cpp's own HTTP server. It listens at once and answers 503 until the model is loaded.
It ends with the process: a signal's default action is all the shutdown that a test's engine needs.
"""

import argparse
import signal
from pathlib import Path

import xllamacpp


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serves a GGUF model on the loopback interface.")
    parser.add_argument("--model", required=True, type=Path, help="the GGUF file")
    parser.add_argument("--name", required=True, help="the name by which clients ask for the model")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--parallel", required=True, type=int, help="slots: requests that run at the same time")
    parser.add_argument("--ctx", required=True, type=int, help="tokens of context that the slots share equally")
    parser.add_argument("--batch", required=True, type=int, help="tokens that one step computes at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--embeddings", action="store_true", help="serve embeddings beside text")
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
    # Prompts of idle slots would be kept in up to 8 GiB of memory beside the slots' own cache.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    return params


def serve_embeddings(params: xllamacpp.CommonParams) -> None:
    """A text model says nothing about pooling, and without it there is one vector per token, which no client expects.

    A pooled text is computed in one step, so the longest one that a slot can hold must fit in a batch. With a cache for
    each slot texts of unequal length that meet in one step are divided all the same, and pooled over a part of
    themselves: a list then gives other vectors than its texts alone. One cache for all slots keeps them whole.
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
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
