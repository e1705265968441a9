"""Text model that returns its prompt and the request parameters."""

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        text = bytes(triton.get_input_tensor_by_name(request, "text_input").as_numpy().ravel()[0]).decode()
        said = f"{text} {request.parameters()}".encode()
        return triton.InferenceResponse([triton.Tensor("text_output", np.array([said], dtype=object))])
