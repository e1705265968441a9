"""Metrics for requests, attempts and endpoints agree with the observed events."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headgate import __version__
from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Hold, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointLeaving,
    EndpointNotReady,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
    TimerFired,
)
from headgate.core.summary import EndpointSummary, PoolDegradation, Summary
from headgate.model.caps import Caps
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.routes import MirrorResult, ModelRoute, RouteMirror
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MILLISECOND, SECOND, EndpointId, PoolName
from headgate.model.usage import Usage, UsageSource
from headgate.ports.fleet import Phase
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.meters import Meters
from headgate.telemetry.prometheus import render
from headgate.telemetry.route_meters import RouteMeters

EMPTY = Summary(policy_hash="", queued={}, requests=0, endpoints=())
POLICY = Policy(classes=(ServiceClass("chat", 0), ServiceClass("batch", 1)), pools=(Pool("small"), Pool("large")))


def an_observer(policy: Policy = POLICY, **limits: int) -> Meters:
    observer = Meters(**limits)
    observer.observe(PolicyChanged(policy, "h1"), [], now=0)
    return observer


def saw(observer: Meters, *commands: Command, event: Event | None = None) -> None:
    observer.observe(event or TimerFired(), commands, now=0)


def arrived(request_id: str = "r", *, stream: bool = True) -> RequestArrived:
    return RequestArrived(Ticket(request_id, Api.CHAT, "m", "t", stream=stream, prompt_bytes=1))


def dispatch(request_id: str = "r", attempt: int = 1, *, pool: str = "small", service_class: str = "chat") -> Dispatch:
    return Dispatch(request_id, attempt, f"{pool}/a", pool, service_class, SECOND // 2, 1, 1, 1, Caps(), "")


def end(outcome: Outcome, service_class: str | None = "chat") -> End:
    return End("r", outcome, service_class, 1, 0, None, "")


def ended(request_id: str = "r", attempt: int = 1, *, usage: Usage | None = None) -> AttemptEnded:
    return AttemptEnded(request_id, attempt, AttemptEnding.COMPLETED, usage=usage)


def samples(observer: Meters, summary: Summary = EMPTY) -> dict[str, float]:
    """All samples, keyed by name and labels."""
    page, _ = render(observer, Histogram(), summary, {})
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}"
            assert key not in found, f"duplicate sample {key}"
            found[key] = sample.value
    return found


def counted(observer: Meters) -> dict[str, float]:
    """Non-zero samples of these counters. `test_traffic_metrics.py` covers the other request counters."""
    names = ("requests", "tokens", "attempts", "retries", "hedges", "endpoint_ejections")
    wanted = tuple(f"headgate_{name}_total{{" for name in names)
    return {key: value for key, value in samples(observer).items() if value and key.startswith(wanted)}


def test_requests_are_counted_by_class_and_outcome() -> None:
    observer = an_observer()

    saw(observer, end(Outcome.COMPLETED), end(Outcome.COMPLETED), end(Outcome.QUEUE_TIMEOUT, "batch"))
    saw(observer, end(Outcome.MODEL_NOT_FOUND, None))
    observer.count_rejected(Outcome.UNAUTHORIZED)

    assert counted(observer) == {
        "headgate_requests_total{class=chat,outcome=completed}": 2,
        "headgate_requests_total{class=batch,outcome=queue_timeout}": 1,
        "headgate_requests_total{class=none,outcome=model_not_found}": 1,
        "headgate_requests_total{class=none,outcome=unauthorized}": 1,
    }


def test_attempts_and_retries_are_counted_by_pool_and_tokens_by_class() -> None:
    observer = an_observer()

    saw(observer, dispatch(), event=arrived())
    saw(observer, dispatch(attempt=2, pool="large"), event=AttemptEnded("r", 1, AttemptEnding.TIMEOUT))
    saw(observer, event=ended(attempt=2, usage=Usage(100, 20, 0, UsageSource.ENGINE)))

    assert counted(observer) == {
        "headgate_attempts_total{ending=timeout,pool=small}": 1,
        "headgate_attempts_total{ending=completed,pool=large}": 1,
        "headgate_retries_total{pool=large}": 1,
        "headgate_tokens_total{class=chat,direction=prompt}": 100,
        "headgate_tokens_total{class=chat,direction=output}": 20,
    }


def test_hedge_is_not_counted_as_a_retry_and_ends_in_its_own_pool() -> None:
    observer = an_observer()

    saw(observer, dispatch(), event=arrived())
    saw(observer, replace(dispatch(attempt=2, pool="large"), hedge=True))
    saw(observer, end(Outcome.COMPLETED), event=ended())
    assert observer.open_requests == 1
    saw(observer, event=AttemptEnded("r", 2, AttemptEnding.ABORTED))

    assert observer.open_requests == 0
    assert counted(observer) == {
        "headgate_requests_total{class=chat,outcome=completed}": 1,
        "headgate_attempts_total{ending=completed,pool=small}": 1,
        "headgate_attempts_total{ending=aborted,pool=large}": 1,
        "headgate_hedges_total{pool=large}": 1,
    }


def test_first_attempt_queue_waits_form_a_histogram_in_seconds() -> None:
    observer = an_observer()

    saw(observer, dispatch("a"), replace(dispatch("b"), waited_ns=700 * SECOND), dispatch("c", attempt=2))

    found = samples(observer)
    assert found["headgate_queue_wait_seconds_count{class=chat}"] == 2
    assert found["headgate_queue_wait_seconds_sum{class=chat}"] == 700.5
    bucket = "headgate_queue_wait_seconds_bucket{{class=chat,le={}}}"
    buckets = {bound: found[bucket.format(bound)] for bound in ("0.4", "0.5", "600.0", "+Inf")}
    assert buckets == {"0.4": 0, "0.5": 1, "600.0": 1, "+Inf": 2}


def test_ejections_are_counted_by_pool() -> None:
    observer = an_observer()
    observer.observe(EndpointJoined(Endpoint("small/a", "small", 1)), [], now=0)

    saw(observer, Eject("small/a", 1, ""), Readmit("small/a", ""), Abort("r", 1, "small/a", ""))
    saw(observer, Eject("small/a", 1, ""), event=EndpointLeaving("small/a"))

    assert counted(observer) == {
        "headgate_endpoint_ejections_total{pool=small}": 1,
        "headgate_endpoint_ejections_total{pool=other}": 1,
    }


def test_attempts_in_flight_are_counted_for_a_limited_number_of_adapters() -> None:
    many = tuple((f"lora-{number:03}", 1) for number in range(100))
    endpoints = [("small/a", (("sql", 1), ("chat", 2))), ("small/b", (("chat", 3),)), ("large/c", (*many, ("sql", 4)))]
    summary = Summary(
        policy_hash="abc",
        queued={},
        requests=0,
        endpoints=tuple(
            EndpointSummary(
                EndpointId(name),
                PoolName(name.split("/")[0]),
                EndpointState.READY,
                leaving=False,
                in_flight=8,
                in_flight_max=8,
                adapters=adapters,
            )
            for name, adapters in endpoints
        ),
    )

    found = {
        key.removeprefix("headgate_adapter_attempts_in_flight"): value
        for key, value in samples(an_observer(), summary).items()
        if key.startswith("headgate_adapter_")
    }

    assert len(found) == 2 + 101
    assert (found["{adapter=sql,pool=small}"], found["{adapter=chat,pool=small}"]) == (1, 5)
    assert (found["{adapter=lora-099,pool=large}"], found["{adapter=other,pool=large}"]) == (1, 4)


def test_scrape_reports_queue_depth_and_endpoint_states() -> None:
    summary = Summary(
        policy_hash="abc",
        queued={"chat": 3, "batch": 0},
        requests=4,
        endpoints=(
            EndpointSummary("small/a", "small", EndpointState.READY, leaving=False, in_flight=1, in_flight_max=4),
            EndpointSummary("small/b", "small", EndpointState.READY, leaving=True, in_flight=2, in_flight_max=4),
            EndpointSummary("gone/c", "gone", EndpointState.EJECTED, leaving=False, in_flight=0, in_flight_max=4),
        ),
    )

    found = samples(an_observer(), summary)

    assert {
        key: value for key, value in found.items() if key.startswith(("headgate_queue_depth", "headgate_attempts_in_"))
    } == {
        "headgate_queue_depth{class=chat}": 3,
        "headgate_queue_depth{class=batch}": 0,
        "headgate_attempts_in_flight{endpoint=small/a,pool=small}": 1,
        "headgate_attempts_in_flight{endpoint=small/b,pool=small}": 2,
        "headgate_attempts_in_flight{endpoint=gone/c,pool=gone}": 0,
    }
    assert {key for key, value in found.items() if key.startswith("headgate_endpoints") and value} == {
        "headgate_endpoints{pool=small,state=ready}",
        "headgate_endpoints{pool=small,state=leaving}",
        "headgate_endpoints{pool=gone,state=ejected}",
    }
    assert found["headgate_endpoints{pool=large,state=ready}"] == 0
    assert found["headgate_config_info{hash=abc}"] == 1
    assert found[f"headgate_build_info{{version={__version__}}}"] == 1


def test_held_requests_are_reported_for_every_class_and_pool_with_holds() -> None:
    patient, hasty = ServiceClass("chat", 0, cold_start_wait_ns_max=SECOND), ServiceClass("batch", 1)
    elsewhere = ServiceClass("code", 0, cold_start_wait_ns_max=SECOND, pools=("large",))
    classes = (patient, hasty, elsewhere)
    observer = an_observer(Policy(classes=classes, pools=(Pool("small", hold_max=9), Pool("large"))))
    saw(observer, Hold("a", "small", "chat", ""), Hold("b", "small", "chat", ""), Hold("c", "gone", "chat", ""))
    summary = Summary("h", queued={}, requests=1, endpoints=(), held={("small", "chat"): 1})

    found = samples(observer, summary)

    assert {name: value for name, value in found.items() if "hold_depth" in name or "requests_held" in name} == {
        "headgate_requests_held_total{class=chat,pool=small}": 2,
        "headgate_hold_depth{class=chat,pool=small}": 1,
    }
    observer.observe(PolicyChanged(POLICY, "h2"), [], now=0)
    assert not any("held_total" in name or "hold_depth" in name for name in samples(observer))


def test_prefix_hashes_are_reported_for_every_pool_in_the_policy() -> None:
    known = (("small", 1_200), ("gone", 7))
    found = samples(an_observer(), Summary("abc", queued={}, requests=0, endpoints=(), prefix_hashes=known))

    assert {name: value for name, value in found.items() if name.startswith("headgate_prefix_index_entries")} == {
        "headgate_prefix_index_entries{pool=small}": 1_200,
        "headgate_prefix_index_entries{pool=large}": 0,
    }


def test_degradation_is_reported_for_every_pool_in_the_policy() -> None:
    given_up = (PoolDegradation("small", level=2, shed_ppm=250_000), PoolDegradation("gone", level=6, shed_ppm=1))
    found = samples(an_observer(), Summary("abc", queued={}, requests=0, endpoints=(), degradation=given_up))

    assert {key: value for key, value in found.items() if "degradation" in key or "shed_ratio" in key} == {
        "headgate_degradation_level{pool=small}": 2,
        "headgate_degradation_level{pool=large}": 0,
        "headgate_shed_ratio{pool=small}": 0.25,
        "headgate_shed_ratio{pool=large}": 0,
    }


def test_new_policy_keeps_counters_for_remaining_classes_and_drops_the_others() -> None:
    observer = an_observer()
    saw(observer, end(Outcome.COMPLETED), end(Outcome.COMPLETED, "batch"), dispatch(service_class="batch"))

    saw(observer, dispatch(service_class="batch"), event=arrived())
    renamed = Policy(classes=(ServiceClass("chat", 0), ServiceClass("other", 1)), pools=(Pool("other"),))
    observer.observe(PolicyChanged(renamed, "h2"), [], now=0)
    saw(observer, end(Outcome.COMPLETED, "batch"), event=ended(usage=Usage(5, 5, 0, UsageSource.ENGINE)))

    assert counted(observer) == {
        "headgate_requests_total{class=chat,outcome=completed}": 1,
        "headgate_requests_total{class=other,outcome=completed}": 1,
    }


def test_reloads_and_unknown_names_do_not_add_series() -> None:
    observer = an_observer()
    series = len(samples(observer))

    for number in range(1000):
        name = f"n{number}"
        observer.observe(PolicyChanged(Policy(classes=(ServiceClass(name, 0),), pools=(Pool(name),)), name), [], now=0)
        saw(observer, dispatch(name, service_class="?", pool="?"), end(Outcome.COMPLETED, "?"), Eject(name, 1, ""))
        saw(observer, event=ended(name))
    observer.observe(PolicyChanged(POLICY, "h1"), [], now=0)

    assert len(samples(observer)) == series
    assert not observer._open


def test_number_of_tracked_open_requests_is_bounded() -> None:
    observer = an_observer(requests_max=2)

    for name in ("a", "b", "c"):
        saw(observer, dispatch(name), event=arrived(name))
    saw(observer, event=ended("c"))

    assert len(observer._open) == 2
    assert counted(observer) == {"headgate_attempts_total{ending=completed,pool=other}": 1}


def test_end_that_reports_the_first_token_is_a_latency_sample() -> None:
    observer = an_observer()
    observer.observe(arrived(), [dispatch()], now=0)
    both = replace(ended(), first_token=True)
    observer.observe(both, [end(Outcome.COMPLETED)], now=400 * MILLISECOND)

    found = samples(observer)
    assert found["headgate_time_to_first_token_seconds_sum{class=chat,prompt_size=small}"] == 0.4


def test_stream_latencies_are_measured_from_arrival() -> None:
    observer = an_observer()

    def at(milliseconds: int, event: Event, *commands: Command) -> None:
        observer.observe(event, commands, now=milliseconds * MILLISECOND)

    at(0, arrived(), dispatch())
    at(400, FirstToken("r", 1))
    at(500, AttemptsProgressed((AttemptProgress("r", 1, 1),)))
    at(900, AttemptsProgressed((AttemptProgress("r", 1, 4),)))
    at(1000, ended(), end(Outcome.COMPLETED))

    found = samples(observer)
    sums = {key: value for key, value in found.items() if "_sum{class=chat" in key and value}
    assert sums == {
        "headgate_queue_wait_seconds_sum{class=chat}": 0.5,
        "headgate_time_to_first_token_seconds_sum{class=chat,prompt_size=small}": 0.4,
        "headgate_inter_token_latency_seconds_sum{class=chat}": 0.4,
        "headgate_request_duration_seconds_sum{class=chat,prompt_size=small}": 1.0,
    }
    assert found["headgate_inter_token_latency_seconds_count{class=chat}"] == 4
    assert found["headgate_inter_token_latency_seconds_bucket{class=chat,le=0.1}"] == 4
    assert not observer._open


def test_non_streaming_request_has_no_time_to_first_token() -> None:
    observer = an_observer()

    saw(observer, dispatch(), event=arrived(stream=False))
    saw(observer, event=FirstToken("r", 1))

    assert samples(observer)["headgate_time_to_first_token_seconds_count{class=chat,prompt_size=small}"] == 0


def test_attempt_outliving_its_request_is_counted_in_its_pool() -> None:
    observer = an_observer()

    saw(observer, dispatch(), event=arrived())
    saw(observer, end(Outcome.CANCELLED))
    saw(observer, event=AttemptEnded("r", 1, AttemptEnding.ABORTED))

    assert counted(observer)["headgate_attempts_total{ending=aborted,pool=small}"] == 1
    assert not observer._open


def test_event_loop_lag_and_held_resources_are_reported() -> None:
    lag = Histogram()
    lag.add(30 * MILLISECOND)
    page, _ = render(an_observer(), lag, EMPTY, {"tasks": 7})

    assert b'headgate_event_loop_lag_seconds_bucket{le="0.025"} 0\n' in page
    assert b'headgate_event_loop_lag_seconds_bucket{le="0.05"} 1\n' in page
    assert b'headgate_tracked_objects{kind="tasks"} 7.0\n' in page


@given(st.integers(), st.integers(), st.integers(), st.text(), st.text())
def test_page_can_be_rendered_for_any_number_and_name(
    prompt: int, output: int, wait: int, pool: str, name: str
) -> None:
    observer = an_observer()
    before = dispatch(pool=pool, service_class=name)

    saw(observer, replace(before, waited_ns=wait), end(Outcome.SHED, name), Eject(pool, wait, ""))
    saw(observer, event=ended(usage=Usage(prompt, output, 0, UsageSource.ENGINE)))
    saw(observer, event=ended())

    page, _ = render(observer, Histogram(), EMPTY, {})
    assert all(float(line.split()[-1]) >= 0 for line in page.decode().splitlines() if "_total{" in line)


def test_page_has_a_content_type_and_help_texts() -> None:
    page, kind = render(an_observer(), Histogram(), EMPTY, {})

    assert kind.startswith("text/plain; version=")
    assert page.startswith(b"# HELP headgate_requests_total Finished requests by outcome.\n")
    assert b"_created" not in page


def test_endpoint_warming_start_and_drain_times_are_reported() -> None:
    observer = an_observer()
    endpoint = Endpoint("small/a", "small", 4)
    for second, event in (
        (0, EndpointJoined(endpoint)),
        (2, EndpointJoined(replace(endpoint, in_flight_max=8))),
        (5, EndpointReady("small/a")),
        (6, EndpointReady("small/a")),
        (10, EndpointNotReady("small/a")),
        (11, EndpointNotReady("small/a")),
        (12, EndpointReady("small/a")),
        (20, EndpointLeaving("small/a")),
        (21, EndpointNotReady("small/a")),
        (22, EndpointReady("small/a")),
    ):
        observer.observe(event, [], now=second * SECOND)
    observer.count_endpoint_start("small", dict.fromkeys(Phase, 0) | {Phase.WEIGHTS: 3 * SECOND})
    observer.count_endpoint_drain("small", 4 * SECOND)
    found = samples(observer)

    assert found["headgate_endpoint_warming_seconds_count{pool=small}"] == 2
    assert found["headgate_endpoint_warming_seconds_sum{pool=small}"] == 5 + 2
    assert found["headgate_endpoint_start_phase_seconds_sum{phase=weights,pool=small}"] == 3
    assert found["headgate_endpoint_drain_seconds_sum{pool=small}"] == 4
    assert "headgate_endpoint_drain_seconds_sum{pool=large}" not in found, (
        "this process does not start endpoints of pool large"
    )


def test_requests_of_routed_models_are_counted_by_their_last_route() -> None:
    model = Model("m", ("small",), routes=(ModelRoute("old", ("small",)), ModelRoute("new", ("large",))))
    observer = an_observer(replace(POLICY, models=(model,)))

    saw(observer, replace(dispatch(), route="old"), event=arrived())
    saw(observer, replace(dispatch(attempt=2), route="new"))
    saw(observer, end(Outcome.COMPLETED), event=ended(attempt=2))
    saw(observer, event=arrived())
    saw(observer, end(Outcome.QUEUE_FULL))
    saw(observer, replace(dispatch("s"), route="gone"), event=arrived("s"))
    saw(observer, replace(end(Outcome.COMPLETED), request_id="s"))

    def routed() -> dict[str, float]:
        return {key: value for key, value in samples(observer).items() if "route=" in key and value}

    assert routed() == {"headgate_route_requests_total{model=m,result=completed,route=new}": 1}
    saw(observer, event=PolicyChanged(replace(POLICY, models=(replace(model, routes=model.routes[1:]),)), "h2"))
    assert routed() == {"headgate_route_requests_total{model=m,result=completed,route=new}": 1}
    saw(observer, event=PolicyChanged(POLICY, "h3"))
    assert routed() == {}


def test_requests_selected_for_copying_are_counted_by_result() -> None:
    route = ModelRoute("old", ("small",), mirror=RouteMirror(("large",)))
    observer = an_observer(replace(POLICY, models=(Model("m", ("small",), routes=(route,)),)))
    observer.routes.count_mirror("m", "old", MirrorResult.BUSY)
    observer.routes.count_mirror("m", "gone", MirrorResult.BUSY)
    found = {key: value for key, value in samples(observer).items() if "mirrored" in key and value}

    assert found == {"headgate_mirrored_requests_total{model=m,result=busy,route=old}": 1}


def test_copies_count_in_their_own_class() -> None:
    route = ModelRoute("old", ("small",), mirror=RouteMirror(("large",)))
    observer = an_observer(replace(POLICY, models=(Model("m", ("small",), routes=(route,)),)))
    copy = RequestArrived(replace(arrived().ticket, requested_class="chat", mirror_route="old"))
    saw(observer, end(Outcome.SHED, "mirror"), event=copy)
    found = {key: value for key, value in samples(observer).items() if "class=" in key and value}

    assert found["headgate_requests_total{class=mirror,outcome=shed}"] == 1
    assert {key for key in found if "class=chat" in key} == set()


def test_number_of_open_requests_counted_by_route_is_bounded() -> None:
    meters = RouteMeters(open_max=1)
    meters.change_models((Model("m", ("small",), routes=(ModelRoute("old", ("small",)),)),))
    for name in ("a", "b"):
        meters.arrived(arrived(name).ticket)
        meters.dispatched(replace(dispatch(name), route="old"))
        meters.ended(replace(end(Outcome.COMPLETED), request_id=name))
    meters.arrived(arrived("c").ticket)
    meters.arrived(arrived("d").ticket)
    meters.dispatched(replace(dispatch("d"), route="old"))
    meters.ended(replace(end(Outcome.COMPLETED), request_id="d"))

    assert sum(meters.requests["m", "old"].values()) == 2
