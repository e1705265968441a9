"""Streaming text model that sends words at a constant rate until the output limit or cancellation.

If the prompt contains the word `fail`, the model fails after three words; if it contains `refuse`, before the first.
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as triton

PACE_S = 0.01
PROMPT_WORDS_MAX = 2048
FINAL = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self._requests = triton.MetricFamily(
            name="nv_trt_llm_request_metrics", description="Requests", kind=triton.MetricFamily.GAUGE
        )
        self._blocks = triton.MetricFamily(
            name="nv_trt_llm_kv_cache_block_metrics", description="KV cache blocks", kind=triton.MetricFamily.GAUGE
        )
        common = {"model": args["model_name"], "version": args["model_version"]}
        self._scheduled = self._requests.Metric(labels={**common, "request_type": "scheduled"})
        self._waiting = self._requests.Metric(labels={**common, "request_type": "waiting"})
        self._fraction = self._blocks.Metric(labels={**common, "kv_cache_block_type": "fraction"})
        self._fraction.set(0.25)

    def execute(self, requests):
        for request in requests:
            self._scheduled.increment(1)
            sender = request.get_response_sender()
            threading.Thread(target=self._answer, args=(request, sender), daemon=True).start()

    def _answer(self, request, sender):
        error = None
        try:
            error = self._write(request, sender)
        finally:
            self._scheduled.increment(-1)
            # Triton may crash if the client disconnects between an error and a separate final response.
            sender.send(error and triton.InferenceResponse(error=triton.TritonError(error)), flags=FINAL)

    def _write(self, request, sender):
        """Send the words, and return the message of the error that ends the response, if any."""
        words = text_of(request, "text_input").split()
        if len(words) > PROMPT_WORDS_MAX or "refuse" in words:
            return f"Prompt length ({len(words)}) exceeds maximum input length ({PROMPT_WORDS_MAX})"
        limit = int(first_of(request, "max_tokens", 16))
        for number in range(limit):
            time.sleep(PACE_S)
            if request.is_cancelled():
                return None
            if number == 3 and "fail" in words:
                return "the model failed: out of memory"
            sender.send(self._response(request, f" w{number}", len(words), last=number == limit - 1))
        return None

    def _response(self, request, text, prompt_tokens, *, last):
        tensors = [triton.Tensor("text_output", np.array([text.encode()], dtype=object))]
        if first_of(request, "return_finish_reason"):
            reason = b"length" if last else b"None"
            tensors.append(triton.Tensor("finish_reason", np.array([reason], dtype=object)))
        if first_of(request, "return_num_input_tokens"):
            tensors.append(triton.Tensor("num_input_tokens", np.array([prompt_tokens], dtype=np.uint32)))
        if first_of(request, "return_num_output_tokens"):
            tensors.append(triton.Tensor("num_output_tokens", np.array([1], dtype=np.uint32)))
        return triton.InferenceResponse(tensors)


def first_of(request, name, otherwise=None):
    tensor = triton.get_input_tensor_by_name(request, name)
    return otherwise if tensor is None else tensor.as_numpy().ravel()[0]


def text_of(request, name):
    return bytes(first_of(request, name, b"")).decode()
