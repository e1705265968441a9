"""What should the operator read in the log?

What changed in the fleet, and requests that ended by an engine's fault. Ordinary traffic is for
metrics; prompts, answers and keys are for nobody.
"""

import logging
from collections.abc import Sequence

from headgate.core.commands import Command, Eject, End, Readmit
from headgate.core.events import EndpointJoined, EndpointLeaving, EndpointUnreadied, Event, PolicyChanged
from headgate.model.outcome import Outcome
from headgate.model.units import Duration, Instant, seconds

_ENGINE_FAULTS = (Outcome.ENGINE_FAILED, Outcome.ENGINE_SILENT, Outcome.EVICTED)

log = logging.getLogger("headgate")


class LogObserver:
    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        match event:
            case EndpointJoined(endpoint):
                log.info("endpoint %s joined, at most %d in flight", endpoint.id, endpoint.in_flight_max)
            case EndpointUnreadied(endpoint_id):
                log.warning("endpoint %s says that it is loading", endpoint_id)
            case EndpointLeaving(endpoint_id):
                log.info("endpoint %s is leaving", endpoint_id)
            case PolicyChanged(_, policy_hash):
                log.info("policy %s is in force", policy_hash)
            case _:
                pass
        for command in commands:
            _tell(command, now)


def _tell(command: Command, now: Instant) -> None:
    match command:
        case Eject(endpoint_id, until, reason):
            log.warning("endpoint %s ejected for %s: %s", endpoint_id, seconds(Duration(until - now)), reason)
        case Readmit(endpoint_id, reason):
            log.info("endpoint %s is ready: %s", endpoint_id, reason)
        case End(request_id, outcome, _, attempts, _, _, reason) if outcome in _ENGINE_FAULTS:
            log.warning("request %s ended %s after %d attempts: %s", request_id, outcome, attempts, reason)
        case _:
            pass
