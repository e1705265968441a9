"""Encodes load test requests.

Most bytes are the same for all of a sender's requests and are encoded only once.
"""

import json
from collections.abc import Sequence
from typing import Final

from headgate import __version__
from headgate.loadtest.prompts import Prompts, SharedPrefixes
from headgate.loadtest.request import LoadTestRequest
from headgate.loadtest.request_bodies import PATHS, variable_fields
from headgate.loadtest.senders import Sender
from headgate.loadtest.target import TargetUrl
from headgate.model.ticket import ANTHROPIC_APIS, APIS_WITHOUT_OUTPUT, Api

_ANTHROPIC_VERSION: Final = "2023-06-01"


class RequestWriter:
    def __init__(
        self,
        target: TargetUrl,
        senders: Sequence[Sender],
        prompts: Prompts,
        *,
        model: str,
        stream: bool = True,
        exact_output: bool = False,
        run_id: str = "run",
        seed: int = 0,
    ) -> None:
        self._senders = senders
        self._prompts = prompts
        self._prefixes = SharedPrefixes(seed)
        self._run_id = run_id
        self._heads = [_head(target, sender) for sender in senders]
        self._bodies = [
            _body(
                sender,
                sender.model or model,
                stream=_streams(sender, stream),
                exact_output=exact_output,
            )
            for sender in senders
        ]

    def write(self, story: LoadTestRequest, retries: int) -> bytes:
        """Returns the bytes of a request. `retries` is the number of retries so far."""
        turns = story.conversation.turns if story.conversation else ()
        body = b"%b,%b}" % (
            self._bodies[story.sender],
            variable_fields(self._senders[story.sender].api, self.prompt(story), story.output_tokens_requested, turns),
        )
        last = f"x-request-id: {self._run_id}-{story.number}-{retries}\r\nx-stainless-retry-count: {retries}\r\n"
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (self._heads[story.sender], last.encode(), len(body), body)

    def prompt(self, story: LoadTestRequest) -> bytes:
        """Returns the text of the request, without the conversation that it repeats."""
        sender, prefix = self._senders[story.sender], None
        if story.conversation is not None:
            prefix = b""
        elif sender.prefix_tokens:
            prefix = self._prefixes.prefix(
                story.number, source=sender.source, tokens=sender.prefix_tokens, prompts=sender.prefix_prompts
            )
        return self._prompts.text(story.number, story.own_prompt_tokens, prefix=prefix, blocks=story.blocks)


def _streams(sender: Sender, by_default: bool) -> bool:  # noqa: FBT001 (a value, not a switch)
    if sender.stream is not None:
        return sender.stream
    return sender.caller.stream if sender.caller else by_default


def _head(target: TargetUrl, sender: Sender) -> bytes:
    lines = [
        f"POST {target.path_of(PATHS[sender.api])} HTTP/1.1",
        f"host: {target.host_header}",
        f"user-agent: headgate-loadtest/{__version__}",
        "accept: text/event-stream, application/json",
        "content-type: application/json",
    ]
    if sender.api in ANTHROPIC_APIS:
        lines.append(f"anthropic-version: {_ANTHROPIC_VERSION}")
    if sender.key is not None:
        lines.append(f"authorization: Bearer {sender.key}")
    if sender.service_class is not None:
        lines.append(f"x-headgate-class: {sender.service_class}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _body(sender: Sender, model: str, *, stream: bool, exact_output: bool) -> bytes:
    """Returns the constant fields of the body, without the closing brace."""
    fields: dict[str, object] = {"model": model}
    generates = sender.api not in APIS_WITHOUT_OUTPUT
    if stream and generates:
        fields["stream"] = True
        if sender.api in (Api.CHAT, Api.COMPLETIONS):
            fields["stream_options"] = {"include_usage": True}
    if sender.tier is not None:
        fields["service_tier"] = sender.tier
    if exact_output and generates:
        fields["ignore_eos"] = True
    return json.dumps(fields, separators=(",", ":")).encode()[:-1]
