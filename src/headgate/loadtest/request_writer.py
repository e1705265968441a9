"""Encodes load test requests.

Most bytes are the same for all of a sender's requests and are encoded only once.
"""

import json
from collections.abc import Sequence

from headgate import __version__
from headgate.loadtest.prompts import Prompts
from headgate.loadtest.schedule import Schedule
from headgate.loadtest.senders import Sender
from headgate.loadtest.target import TargetUrl


class RequestWriter:
    def __init__(
        self,
        target: TargetUrl,
        schedule: Schedule,
        senders: Sequence[Sender],
        prompts: Prompts,
        *,
        model: str,
        stream: bool = True,
        exact_output: bool = False,
        run_id: str = "run",
    ) -> None:
        self._schedule = schedule
        self._prompts = prompts
        self._run_id = run_id
        self._heads = [_head(target, sender) for sender in senders]
        self._bodies = [_body(sender, model, stream=stream, exact_output=exact_output) for sender in senders]

    def write(self, number: int, retries: int) -> bytes:
        """Returns the bytes of a request. `retries` is the number of retries so far."""
        schedule = self._schedule
        sender = schedule.sender[number]
        body = b'%b,"max_tokens":%d,"messages":[{"role":"user","content":"%b"}]}' % (
            self._bodies[sender],
            schedule.output_tokens[number],
            self._prompts.text(number, schedule.prompt_tokens[number]),
        )
        last = f"x-request-id: {self._run_id}-{number}-{retries}\r\nx-stainless-retry-count: {retries}\r\n"
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (self._heads[sender], last.encode(), len(body), body)


def _head(target: TargetUrl, sender: Sender) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"host: {target.host_header}",
        f"user-agent: headgate-loadtest/{__version__}",
        "accept: text/event-stream, application/json",
        "content-type: application/json",
    ]
    if sender.key is not None:
        lines.append(f"authorization: Bearer {sender.key}")
    if sender.service_class is not None:
        lines.append(f"x-headgate-class: {sender.service_class}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _body(sender: Sender, model: str, *, stream: bool, exact_output: bool) -> bytes:
    """Returns the constant fields of the body, without the closing brace."""
    fields: dict[str, object] = {"model": model}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if sender.tier is not None:
        fields["service_tier"] = sender.tier
    if exact_output:
        fields["ignore_eos"] = True
    return json.dumps(fields, separators=(",", ":")).encode()[:-1]
