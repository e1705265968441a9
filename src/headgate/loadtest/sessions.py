"""Sessions of several turns. Each turn repeats the conversation so far, with the model's own responses.

A turn starts one think time after the end of the previous response. Its latency is measured from that time. A failed
turn ends its session, and so does the end of the schedule.
"""

from random import Random

from headgate.loadtest.conversation import Conversation, Turn
from headgate.loadtest.options import SessionShape
from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.simulation.workload.lengths import draw_length


def next_turn(
    shape: SessionShape, ended: LoadTestRequest, turn: Turn, *, number: int, seed: int
) -> LoadTestRequest | None:
    """Returns the request after `ended`, or None if the session is over."""
    if ended.outcome is not LoadTestOutcome.COMPLETED:
        return None
    before = ended.conversation or Conversation(ended.number, ())
    conversation = Conversation(before.session, (*before.turns, turn))
    taken = len(conversation.turns)
    if taken >= Random(f"{seed} turns {before.session}").randint(*shape.turns):
        return None
    draw = Random(f"{seed} turn {before.session} {taken}")
    return LoadTestRequest(
        number=number,
        sender=ended.sender,
        prompt_tokens_requested=conversation.tokens + draw_length(shape.prompt, draw),
        output_tokens_requested=draw_length(shape.output, draw),
        scheduled_ns=ended.end_ns + round(draw.expovariate(1 / shape.think_time_s) * 1e9),
        conversation=conversation,
    )
