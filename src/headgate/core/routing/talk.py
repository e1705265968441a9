"""What does an engine say of itself, and does it still talk?

What we have sent is known at once, but it is not all that an engine may have: others may use it too. What it says is
all, but seconds old. So both are used: whatever it says beyond what was sent from here counts as somebody else's, until
it speaks again. A little more than we know of is no more than the time between our looking and its.

An engine that used to talk and has fallen silent is passed over as long as most others talk. Where most have fallen
silent it is rather the one who listens that is ill: work goes on by what was sent, a fifth below the limits.
"""

from collections.abc import Iterable
from typing import Final

from headgate.core.events import EndpointMeasured
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.sequence_limit import SequenceLimit
from headgate.model.endpoint import EndpointState

_SEQUENCES_TOLERATED: Final = 2
_KV_PERCENT_TOLERATED: Final = 5
LIMIT_PERCENT_UNHEARD: Final = 80


def hear(endpoint: EndpointRecord, said: EndpointMeasured) -> bool:
    """Takes what an engine says; true if it had been silent or speaks for the first time."""
    known = endpoint.in_flight + _SEQUENCES_TOLERATED
    endpoint.foreign = max(0, said.running + said.waiting - known)
    if endpoint.state is not EndpointState.READY:
        # A broken engine may report waiting requests as well.
        endpoint.sequences = SequenceLimit()
    endpoint.sequences.observe(
        running=said.running, waiting=said.waiting, kv_percent=said.kv_percent, foreign=endpoint.foreign
    )
    endpoint.kv_foreign = 0
    _take_capacity(endpoint, said.kv_tokens)
    kv_tokens = endpoint.terms.kv_tokens
    if said.kv_percent is not None and kv_tokens is not None:
        used = (said.kv_percent - _KV_PERCENT_TOLERATED) * kv_tokens // 100
        endpoint.kv_foreign = max(0, used - endpoint.kv_used)
    changed = endpoint.silent or not endpoint.talks
    endpoint.talks, endpoint.silent = True, False
    return changed


def _take_capacity(endpoint: EndpointRecord, kv_tokens: int | None) -> None:
    """Takes the KV capacity that an engine reports, unless the configuration gives it."""
    terms = endpoint.terms
    if kv_tokens is not None and not terms.kv_configured and kv_tokens != terms.kv_tokens:
        endpoint.terms = terms._replace(kv_tokens=kv_tokens)


def forget(endpoint: EndpointRecord) -> None:
    """Another engine may stand there from here on, of which nobody has heard anything."""
    endpoint.foreign = endpoint.kv_foreign = 0
    if not endpoint.terms.kv_configured:
        endpoint.terms = endpoint.terms._replace(kv_tokens=None)
    endpoint.talks = endpoint.silent = endpoint.passed_over = False
    endpoint.limit_percent = 100
    endpoint.sequences = SequenceLimit()
    endpoint.bound()


def judge(endpoints: Iterable[EndpointRecord]) -> list[EndpointRecord]:
    """Decides what silence means in a pool; those for whom that has changed."""
    talkers = [each for each in endpoints if each.talks]
    mostly_silent = 2 * len([each for each in talkers if each.silent]) > len(talkers)
    changed: list[EndpointRecord] = []
    for each in talkers:
        passed_over = each.silent and not mostly_silent
        limit_percent = LIMIT_PERCENT_UNHEARD if each.silent and mostly_silent else 100
        if (passed_over, limit_percent) != (each.passed_over, each.limit_percent):
            each.passed_over, each.limit_percent = passed_over, limit_percent
            each.bound()
            changed.append(each)
    return changed
