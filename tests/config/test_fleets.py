"""A pool's fleet and scaling options."""

import pytest

from headgate.config.settings import Address
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.ray.options import RayOptions
from headgate.model.scaling import ScalingRules, ScheduledEvent
from headgate.model.units import MINUTE, SECOND
from tests.config.builders import problems_of, settings_of, warnings_of

POOL = """
pools:
  small: {engine: llamacpp, in_flight_max: 4, %s}
models: {smollm2: small}
tenants: {demo: {}}
anonymous_tenant: demo
"""
PROCESSES = 'fleet: {kind: processes, command: "serve --port {port} --model {model}"%s}'
DNS = "fleet: {kind: dns, %s}"
SCALING = PROCESSES % "" + ", scaling: {%s}"
PATIENT = "classes: {interactive: {cold_start_wait_max: 2m}, batch: {}}"


def fleet_of(text: str) -> object:
    [pool] = settings_of(POOL % text).pools
    return pool.fleet


def said_of(text: str) -> list[str]:
    """Problems, excluding their location, which is always line 2."""
    return [problem.removeprefix("2: pools.small.") for problem in problems_of(POOL % text)]


# Options


def test_static_pool_has_no_fleet_options() -> None:
    assert fleet_of("endpoints: http://a:1") is None
    assert fleet_of("endpoints: http://a:1, fleet: static") is None


def test_process_fleet_has_defaults() -> None:
    assert fleet_of(PROCESSES % "") == ProcessOptions(
        command=("serve", "--port", "{port}", "--model", "{model}"),
        environment={},
        working_directory=None,
        log_directory=None,
        port_range=(20_000, 29_999),
        in_flight_max=4,
        endpoint_count=1,
        start_timeout_ns=10 * MINUTE,
        stop_timeout_ns=10 * SECOND,
        restart_backoff_ns=SECOND,
        restart_backoff_ns_max=MINUTE,
    )


def test_command_list_is_not_split() -> None:
    listed = 'fleet: {kind: processes, command: [serve, "a b", "{\\"x\\": 1}", "{port}"], endpoint_count: 3}'
    fleet = fleet_of(listed)

    assert isinstance(fleet, ProcessOptions)
    assert (fleet.command, fleet.endpoint_count) == (("serve", "a b", '{"x": 1}', "{port}"), 3)


def test_environment_variables_are_hidden_and_change_the_hash() -> None:
    one, two = (
        settings_of(POOL % PROCESSES % f", environment: {{KEY: {value}}}") for value in ("canary-1", "canary-2")
    )

    assert "canary" not in repr(one)
    assert one.hash != two.hash


def test_dns_fleet_has_defaults() -> None:
    assert fleet_of(DNS % "name: engines.default.svc, port: 8000") == DnsOptions(
        name="engines.default.svc",
        port=8000,
        nameserver=None,
        in_flight_max=4,
        resolve_interval_ns=5 * SECOND,
        misses_max=3,
        empty_after_ns=MINUTE,
    )


def test_dns_fleet_accepts_srv_name_and_name_server() -> None:
    fleet = fleet_of(DNS % 'name: _http._tcp.engines.svc, nameserver: "127.0.0.1:5353", zone: east')

    assert isinstance(fleet, DnsOptions)
    assert (fleet.port, fleet.nameserver, fleet.zone) == (None, Address("127.0.0.1", 5353), "east")


def test_scaling_has_defaults() -> None:
    [pool] = settings_of(POOL % SCALING % "endpoints_max: 4").pools

    assert pool.scaling == ScalingRules(endpoints_max=4)


def test_scaling_objective_is_the_strictest_of_the_pools_classes() -> None:
    classes = """
classes:
  interactive: {ttft: 2s, objectives: {ttft_percent: 99.5}}
  batch: {ttft: 9s, objectives: {ttft_percent: 95}}
  quick: {priority_band: 0, ttft: 1s, pools: [elsewhere], objectives: {ttft_percent: 99.9}}
"""
    text = POOL.replace("models:", "  elsewhere: {engine: llamacpp, in_flight_max: 4, endpoints: http://a:1}\nmodels:")
    text = text.replace("{smollm2: small}", "{smollm2: small, large: elsewhere}")
    [pool, _] = settings_of(text % (SCALING % "endpoints_max: 4, correction_percent_max: 150") + classes).pools

    assert pool.scaling == ScalingRules(endpoints_max=4, objective_ppm=995_000, correction_percent_max=150)


def test_scaling_is_converted_to_core_units() -> None:
    text = (
        "endpoints_min: 2, endpoints_max: 9, warm_endpoints_min: 3, target_utilization_percent: 60, cold_start: 40s, "
        "scale_down_stabilization: 2m, scale_to_zero_after: 1h, "
        "endpoint_usd_per_hour: 2.5, usd_per_hour_max: 20, "
        "calendar: [{name: launch, starts_at: 1970-01-01T01:00:01+01:00, "
        "ends_at: 1970-01-01T00:00:02.5Z, endpoints_min: 6}]"
    )
    [pool] = settings_of(POOL % SCALING % text).pools

    assert pool.scaling == ScalingRules(
        endpoints_min=2,
        endpoints_max=9,
        warm_endpoints_min=3,
        target_utilization_percent=60,
        cold_start_ns=40 * SECOND,
        scale_down_stabilization_ns=2 * MINUTE,
        scale_to_zero_after_ns=60 * MINUTE,
        endpoint_microdollars_per_hour=2_500_000,
        microdollars_per_hour_max=20_000_000,
        calendar=(ScheduledEvent("launch", 1 * SECOND, 2_500_000_000, 6),),
    )


@pytest.mark.parametrize(
    ("fleet", "scaling", "begins"),
    [
        ("", "endpoints_max: 4", 1),
        ("", "endpoints_max: 4, warm_endpoints_min: 2", 2),
        (", endpoint_count: 3", "endpoints_max: 4", 3),
    ],
)
def test_initial_endpoint_count_is_within_scaling_bounds(fleet: str, scaling: str, begins: int) -> None:
    found = fleet_of(PROCESSES % fleet + ", scaling: {" + scaling + "}")

    assert isinstance(found, ProcessOptions)
    assert found.endpoint_count == begins


def test_only_pools_that_scale_to_zero_hold_requests() -> None:
    empty = settings_of(
        POOL % SCALING % "endpoints_min: 0, endpoints_max: 4, held_requests_max: 9, cold_start: 1m" + PATIENT
    )
    always = settings_of(POOL % SCALING % "endpoints_max: 4, held_requests_max: 9, cold_start: 1m")

    assert [(each.hold_max, each.cold_start_ns) for each in empty.policy.pools] == [(9, MINUTE)]
    assert [each.cold_start_wait_ns_max for each in empty.policy.classes] == [2 * MINUTE, None]
    assert [(each.hold_max, each.cold_start_ns) for each in always.policy.pools] == [(0, MINUTE)]


# Problems and warnings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoints: []", "endpoints: has no endpoints; list the URL of at least one engine, or configure fleet"),
        ("fleet: proceses", 'fleet.kind: kind "proceses" does not exist; did you mean "processes"?'),
        ("fleet: slurm", 'fleet.kind: kind "slurm" does not exist; the kinds are static, dns, processes, ray'),
        ("fleet: dns", "fleet.name: missing; set the DNS name of the engines, such as engines.default.svc"),
        (DNS % "name: http://a", "fleet.name: is not a DNS name; write it without scheme"),
        (DNS % "name: a.svc", "fleet.port: missing; set the port of the engines, or use an SRV name such as _http"),
        (DNS % "name: _a._tcp.b, port: 1", "fleet.port: has no effect with an SRV name, which includes ports"),
        (DNS % "name: a, port: 1, zone: a b", "fleet.zone: must have only letters, digits, and . _ : -"),
        (
            DNS % "name: a, port: 1, command: x",
            "fleet.command: has no effect with kind dns, only with processes or ray; remove it",
        ),
        (
            "endpoints: http://a:1, fleet: {zone: x}",
            "fleet.zone: has no effect with kind static, only with dns or processes or ray; remove it",
        ),
        (
            "endpoints: http://a:1, " + PROCESSES % "",
            "endpoints: cannot be combined with a fleet of kind processes; remove one of the two",
        ),
        ("fleet: processes", "fleet.command: missing; set the command that starts an engine, such as "),
        (
            'fleet: {kind: processes, command: "serve --port 80"}',
            (
                "fleet.command: does not use {port}, so all engines would listen on the same port; pass {port} "
                "to the engine"
            ),
        ),
        (
            'fleet: {kind: processes, command: "serve {port} {modl}"}',
            'fleet.command: {modl} is not a known placeholder; did you mean "model"?',
        ),
        (
            "fleet: {kind: processes, command: \"serve {port} 'x\"}",
            "fleet.command: has an unclosed quote; close it, or write the command as a list of arguments",
        ),
        (
            DNS % "name: engines, port: 1, not_ready_name: 'http://engines'",
            "fleet.not_ready_name: is not a DNS name; write it without scheme, port or path",
        ),
        (
            DNS % "name: engines, port: 1, not_ready_name: _http._tcp.engines",
            "fleet.not_ready_name: must be an SRV name if name is one, and a host name otherwise; change one of them",
        ),
        (
            DNS % "name: engines, port: 1, not_ready_name: engines",
            (
                "fleet.not_ready_name: is the same as name; use a name that includes engines that are not ready, "
                "or remove it"
            ),
        ),
        (PROCESSES % ", endpoint_count: 0", "fleet.endpoint_count: must be at least 1 without scaling; raise it"),
        (PROCESSES % ', port_range: "80:90"', "fleet.port_range: must be between 1024 and"),
        (PROCESSES % ", environment: {A-B: x}", "fleet.environment.A-B: is not a valid variable name; use letters"),
        (PROCESSES % ", restart_backoff: 2m", "fleet.restart_backoff_max: is less than restart_backoff; raise it"),
        (
            PROCESSES % ", endpoint_count: 9" + ", scaling: {endpoints_max: 4}",
            (
                "fleet.endpoint_count: is not between scaling.endpoints_min 1 and scaling.endpoints_max 4; "
                "change one of them"
            ),
        ),
        (
            PROCESSES % ", zone: 'rack-{slots}'",
            'fleet.command: {slots} is not a known placeholder; did you mean "slot"?',
        ),
        (SCALING % "", "scaling.endpoints_max: missing; set the maximum number of endpoints"),
        (
            SCALING % "endpoints_min: 4, endpoints_max: 2",
            "scaling.endpoints_max: is less than endpoints_min 4; raise it",
        ),
        (
            SCALING % "warm_endpoints_min: 4, endpoints_max: 2",
            "scaling.endpoints_max: is less than warm_endpoints_min 4; raise it",
        ),
        (
            SCALING % "endpoints_max: 2, usd_per_hour_max: 4",
            "scaling.endpoint_usd_per_hour: missing; set the hourly price of an endpoint, or remove usd_per_hour_max",
        ),
        (
            SCALING % "endpoints_min: 3, endpoints_max: 4, endpoint_usd_per_hour: 2, usd_per_hour_max: 4",
            "scaling.usd_per_hour_max: is too low for endpoints_min 3 at 2 per hour; raise it",
        ),
        (
            SCALING % "endpoints_max: 4, calendar: [{name: x, starts_at: 2026-11-27, ends_at: 2026-11-28T00:00Z}]",
            (
                "scaling.calendar[0].starts_at: expected a timestamp with a time zone, such as "
                "2026-11-27T08:00:00+01:00 or "
            ),
        ),
        (
            SCALING % "endpoints_max: 4, calendar: [{name: x, starts_at: 2026-11-27T00:00Z, "
            "ends_at: 2026-11-26T00:00Z, endpoints_min: 5}]",
            "scaling.calendar[0].ends_at: is not after starts_at; change one of them",
        ),
    ],
)  # fmt: skip
def test_invalid_fleet_setting_is_reported_with_next_step(text: str, said: str) -> None:
    problems = said_of(text)

    assert problems
    assert problems[0].startswith(said), problems


def test_fleet_requires_in_flight_max() -> None:
    text = POOL.replace("in_flight_max: 4, ", "") % DNS % "name: a, port: 1"

    assert problems_of(text) == [
        (
            "2: pools.small.in_flight_max: missing; set the number of concurrent requests per endpoint "
            "(llama.cpp: its --parallel; vLLM: try 64)"
        )
    ]


def test_budget_equal_to_the_minimum_cost_is_valid() -> None:
    text = "endpoints_min: 3, endpoints_max: 4, endpoint_usd_per_hour: 0.1, usd_per_hour_max: 0.3"

    assert [pool.name for pool in settings_of(POOL % (SCALING % text)).pools] == ["small"]


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("warm_endpoints_min: 3, ", "is too low for warm_endpoints_min 3 at 2 per hour, so fewer stay warm; raise it"),
        (
            "calendar: [{name: launch, starts_at: 2026-11-27T00:00Z, ends_at: 2026-11-28T00:00Z, endpoints_min: 4}], ",
            "is too low for the 4 endpoints of calendar event launch at 2 per hour, so fewer are started; raise it",
        ),
    ],
)
def test_insufficient_scaling_budget_causes_a_warning(text: str, warned: str) -> None:
    scaling = SCALING % f"{text}endpoints_max: 4, endpoint_usd_per_hour: 2, usd_per_hour_max: 4"

    [warning] = warnings_of(POOL % scaling)
    assert warning.endswith(f"pools.small.scaling.usd_per_hour_max: {warned}")


@pytest.mark.parametrize(
    ("classes", "who"),
    [
        ("", "class interactive or long or batch"),
        ("classes: {interactive: {}, batch: {cold_start_wait_max: 2m, pools: []}}", None),
        ("classes: {interactive: {}}", "class interactive"),
    ],
)
def test_pool_that_scales_to_zero_requires_a_class_that_waits(classes: str, who: str | None) -> None:
    wrong = f"is 0, but no class waits for a cold start; set cold_start_wait_max on {who}, or raise it to 1"
    told = [] if who is None else [f"2: pools.small.scaling.endpoints_min: {wrong}"]

    assert problems_of(POOL % SCALING % "endpoints_min: 0, endpoints_max: 4" + classes) == told


def test_class_without_access_to_the_pool_is_not_treated_as_waiting() -> None:
    other = "  spare: {engine: llamacpp, in_flight_max: 1, endpoints: http://a:1}\nmodels:"
    text = (POOL % SCALING % "endpoints_min: 0, endpoints_max: 4").replace("models:", other)

    assert problems_of(text + "classes: {interactive: {pools: spare, cold_start_wait_max: 3m}}") == [
        (
            "2: pools.small.scaling.endpoints_min: is 0, but no class waits for a cold start; set "
            "cold_start_wait_max on a class that may use the pool, or raise it to 1"
        )
    ]


def test_wait_shorter_than_cold_start_causes_a_warning() -> None:
    text = POOL % SCALING % "endpoints_min: 0, endpoints_max: 4, cold_start: 3m" + PATIENT

    assert warnings_of(text) == [
        (
            "6: classes.interactive.cold_start_wait_max: is less than pools.small.scaling.cold_start 180 s, "
            "so requests that wait for the first endpoint are rejected before it is ready; raise it, or "
            "lower cold_start"
        )
    ]


def test_scaling_settings_for_a_static_fleet_cause_a_warning() -> None:
    assert warnings_of(POOL % "endpoints: http://a:1, scaling: {endpoints_max: 2}") == [
        (
            "2: pools.small.scaling: only reports the desired number of endpoints, because a static fleet "
            "cannot scale; use another fleet kind"
        )
    ]


def test_ray_fleet_requires_only_python_and_command() -> None:
    fleet = fleet_of(
        'fleet: {kind: ray, python: /ray/bin/python, command: "serve --host {host} --port {port}", gpus: 1}'
    )

    assert isinstance(fleet, ProcessOptions)
    assert fleet.ray == RayOptions(python="/ray/bin/python", address="auto", cpus=1.0, gpus=1.0, resources={})


def test_slow_start_may_be_zero() -> None:
    text = POOL % "endpoints: http://a:1" + "health: {slow_start: 0s}\n"

    assert settings_of(text).policy.health.slow_start_ns == 0
