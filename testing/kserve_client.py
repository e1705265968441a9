"""Probes a KServe address with Triton's own client.

Run it with the Python interpreter of Triton's environment, which has that client:

    python kserve_client.py HOST:PORT MODEL TEXT...

It prints one line of JSON with the server and model metadata, the embedding of each text as binary tensors and as JSON,
and the error for a request that cannot be served.
"""

import json
import sys

import numpy as np
from tritonclient import http


def embedding(client: http.InferenceServerClient, model: str, text: str, *, binary: bool) -> list[float]:
    tensor = http.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=object), binary_data=binary)
    wanted = http.InferRequestedOutput("embedding", binary_data=binary)
    return client.infer(model, [tensor], outputs=[wanted]).as_numpy("embedding")[0].tolist()


def rejection(client: http.InferenceServerClient, model: str) -> str:
    tensor = http.InferInput("nothing", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"x"]], dtype=object))
    try:
        client.infer(model, [tensor])
    except http.InferenceServerException as error:
        return str(error)
    return ""


def main() -> None:
    address, model, *texts = sys.argv[1:]
    client = http.InferenceServerClient(address)
    seen = {
        "server": client.get_server_metadata()["name"],
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(model),
        "other_ready": client.is_model_ready("another"),
        "inputs": [each["name"] for each in client.get_model_metadata(model)["inputs"]],
        "binary": [embedding(client, model, text, binary=True) for text in texts],
        "json": [embedding(client, model, text, binary=False) for text in texts],
        "refusal": rejection(client, model),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
