"""Small embedding model that takes a fixed time per batch, regardless of the number of texts.

The request parameter `delay_ms` increases the time its batch takes.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as triton

BATCH_S = 0.005
WIDTH = 8


class TritonPythonModel:
    def execute(self, requests):
        parameters = [json.loads(request.parameters() or "{}") for request in requests]
        time.sleep(BATCH_S + max(int(each.get("delay_ms", 0)) for each in parameters) / 1000)
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        texts = triton.get_input_tensor_by_name(request, "text").as_numpy()
        rows = np.zeros((len(texts), WIDTH), dtype=np.float32)
        for row, text in zip(rows, texts.ravel(), strict=True):
            for place, byte in enumerate(bytes(text)):
                row[place % WIDTH] += byte
        return triton.InferenceResponse([triton.Tensor("embedding", rows)])
