"""Tests for tickets."""

from dataclasses import replace

import pytest

from headgate.model.ticket import APIS_WITHOUT_OUTPUT, FORM_APIS, Api, Ticket
from headgate.model.units import ModelName, RequestId, TenantId

TICKET = Ticket(RequestId("r"), Api.CHAT, ModelName("m"), TenantId("t"), stream=False, prompt_bytes=1)


@pytest.mark.parametrize(
    ("api", "asked", "cap", "limit"),
    [
        (Api.CHAT, None, None, None),
        (Api.CHAT, 5, None, 5),
        (Api.CHAT, None, 9, 9),
        (Api.CHAT, 5, 9, 5),
        (Api.CHAT, 9, 5, 5),
        (Api.TRANSCRIPTIONS, None, None, None),
        (Api.TRANSCRIPTIONS, None, 9, None),
        (Api.EMBEDDINGS, None, 9, None),
    ],
)
def test_caps_on_output_do_not_limit_apis_without_output(
    api: Api, asked: int | None, cap: int | None, limit: int | None
) -> None:
    assert replace(TICKET, api=api, output_tokens_max=asked).output_limit(cap) == limit


def test_only_the_input_of_a_transcript_counts() -> None:
    assert set(FORM_APIS) <= set(APIS_WITHOUT_OUTPUT)
