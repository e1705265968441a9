"""Fuzz target: a request body is parsed or rejected, and the engine receives the content that was checked."""

import json
from typing import Any

from headgate.model.caps import Caps, ReasoningEffort
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, FORM_APIS, Api
from headgate.wire.request_body import BadRequest, RequestBody

TIGHT = Caps(
    prompt_tokens=16,
    trim_prompt=True,
    output_tokens=64,
    n=2,
    best_of=2,
    logprobs=1,
    prompt_logprobs=0,
    reasoning_effort=ReasoningEffort.LOW,
)
OURS = {"model", "stream_options", "priority", "cache_salt"}
"""Fields that the gateway rewrites for the engine."""


def one_input(data: bytes) -> None:
    for api in set(Api) - set(FORM_APIS):
        try:
            body = RequestBody.parse(data, api)
        except BadRequest as bad:
            _check_refusal(bad)
            continue
        _check(body, _read(data), _read(body.encode(served_model="served")))
        capped, told = body.capped(TIGHT)
        assert capped.capped(TIGHT)[1] == (), "what was lowered once needs no lowering"
        assert (capped is body) == (told == ())
        _check_caps(capped, _read(capped.encode(served_model="served")))


def _check_refusal(bad: BadRequest) -> None:
    assert len(bad.message) < 1000


def _read(raw: bytes) -> dict[str, Any]:
    # Numbers are kept as text, because the gateway does not limit their size.
    return json.loads(raw, parse_int=str, parse_float=str, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON and was let through")


def _check(body: RequestBody, asked: dict[str, Any], sent: dict[str, Any]) -> None:
    assert sent["model"] == "served"
    assert {k: v for k, v in sent.items() if k not in OURS} == {k: v for k, v in asked.items() if k not in OURS}
    assert 0 <= body.prompt_bytes_kept <= body.prompt_bytes
    if body.stream:
        assert sent["stream"] is True
        if body.api not in (Api.RESPONSES, Api.MESSAGES):
            assert sent["stream_options"]["include_usage"] is True


def _check_caps(body: RequestBody, sent: dict[str, Any]) -> None:
    if body.api in APIS_WITHOUT_OUTPUT:
        return
    assert int(sent.get("n") or 1) <= 2
    if body.api is not Api.RESPONSES:
        assert sent.get("prompt_logprobs") is None
        assert not sent.get("echo") or sent.get("logprobs") is None or body.api is Api.CHAT
    limits = ("max_output_tokens",) if body.api is Api.RESPONSES else ("max_tokens", "max_completion_tokens")
    for name in (*limits, "n_predict"):
        assert 0 <= int(sent.get(name) or 0) <= 64
