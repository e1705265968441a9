"""Ejects endpoints whose probe fails and that show no other activity.

An endpoint is unresponsive if its probe fails and, for ten seconds, no token has arrived and no attempt has completed.
An unresponsive endpoint is ejected. Failed attempts alone would not reveal it in time: without requests there is no
failure to count, and a request whose caller disconnects before the engine's timeout does not count as a failure.
Attempts in flight continue, because each of them has its own timeout.

A failing probe is not sufficient on its own. Under load, an engine may stop responding to probes while it still
generates tokens, so any activity restarts the ten seconds. They are counted from the time at which the host reports the
failing probe, which takes two failed probes. The ten seconds do not depend on `stall_timeout`, because that setting is
for streams that have started.

Three rules apply to an unresponsive endpoint that is ejected:

- Its ejection is not shortened, even if no other endpoint of the pool is live. A passing probe ends the ejection.
- Requests do not wait for it. If no other endpoint is live or expected, they are rejected with `no_endpoints`.
- It is put on trial at the end of its ejection, even if its probe still fails, because the probe may be wrong. A
  successful request readmits it. If it shows no activity, it is ejected again after ten seconds, for twice as long.
"""

from collections.abc import Mapping

from headgate.core.routing.endpoints import PROBE_FAILING_NS_MAX, EndpointRecord
from headgate.core.timers import TimerHeap, Timers
from headgate.model.units import Duration, EndpointId, Instant, after, format_seconds


class FailingProbes:
    """Timers of endpoints that are still serving although their probe fails."""

    __slots__ = ("_timers",)

    def __init__(self, timer_heap: TimerHeap) -> None:
        self._timers: Timers[EndpointId] = Timers(timer_heap)

    def watch(self, endpoint: EndpointRecord, since: Instant) -> None:
        self._timers.set(endpoint.id, after(since, PROBE_FAILING_NS_MAX))

    def unwatch(self, endpoint: EndpointRecord) -> None:
        self._timers.clear(endpoint.id)

    def take_unresponsive(
        self, endpoints: Mapping[EndpointId, EndpointRecord], now: Instant
    ) -> list[tuple[EndpointRecord, str]]:
        """Returns the endpoints to eject, each with the reason.

        Restarts the timers of endpoints that have shown activity.
        """
        found: list[tuple[EndpointRecord, str]] = []
        for endpoint_id in sorted(self._timers.pop_fired()):
            endpoint = endpoints[endpoint_id]
            if endpoint.unresponsive(now):
                found.append((endpoint, _reason(endpoint, now)))
            else:
                self.watch(endpoint, endpoint.last_sign)
        return found


def _reason(endpoint: EndpointRecord, now: Instant) -> str:
    trouble, silence = endpoint.probe_trouble, format_seconds(Duration(now - endpoint.last_sign))
    assert trouble is not None, f"the probe of {endpoint.id} does not fail"
    return f"the probe fails, and there was no activity for {silence}: {trouble.detail or trouble.kind.value}"
