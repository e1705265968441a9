"""What do the sections about fleets and scaling come to, and what is said of those that are wrong?"""

import pytest

from headgate.config.settings import Address
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.ray.options import RayOptions
from headgate.model.scaling import KnownEvent, ScalingRules
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
PATIENT = "classes: {interactive: {start_wait: 2m}, batch: {}}"


def fleet_of(text: str) -> object:
    [pool] = settings_of(POOL % text).pools
    return pool.fleet


def said_of(text: str) -> list[str]:
    """Without where it stands, which is line 2 throughout."""
    return [problem.removeprefix("2: pools.small.") for problem in problems_of(POOL % text)]


# What it comes to


def test_a_pool_with_a_list_has_no_other_fleet() -> None:
    assert fleet_of("endpoints: http://a:1") is None
    assert fleet_of("endpoints: http://a:1, fleet: static") is None


def test_processes_have_usual_settings() -> None:
    assert fleet_of(PROCESSES % "") == ProcessOptions(
        command=("serve", "--port", "{port}", "--model", "{model}"),
        environment={},
        folder=None,
        logs=None,
        ports=(20_000, 29_999),
        in_flight_max=4,
        endpoints=1,
        start_ns_max=10 * MINUTE,
        stop_ns_max=10 * SECOND,
        restart_ns=SECOND,
        restart_ns_max=MINUTE,
    )


def test_a_command_may_be_a_list_whose_words_stay_as_they_are() -> None:
    listed = 'fleet: {kind: processes, command: [serve, "a b", "{\\"x\\": 1}", "{port}"], endpoints: 3}'
    fleet = fleet_of(listed)

    assert isinstance(fleet, ProcessOptions)
    assert (fleet.command, fleet.endpoints) == (("serve", "a b", '{"x": 1}', "{port}"), 3)


def test_variables_are_not_shown_and_change_the_hash() -> None:
    one, two = (
        settings_of(POOL % PROCESSES % f", environment: {{KEY: {value}}}") for value in ("canary-1", "canary-2")
    )

    assert "canary" not in repr(one)
    assert one.hash != two.hash


def test_a_name_has_usual_settings() -> None:
    assert fleet_of(DNS % "name: engines.default.svc, port: 8000") == DnsOptions(
        name="engines.default.svc",
        port=8000,
        nameserver=None,
        in_flight_max=4,
        every_ns=5 * SECOND,
        misses_max=3,
        empty_ns_max=MINUTE,
    )


def test_a_service_and_a_name_server_may_be_named() -> None:
    fleet = fleet_of(DNS % 'name: _http._tcp.engines.svc, nameserver: "127.0.0.1:5353", zone: east')

    assert isinstance(fleet, DnsOptions)
    assert (fleet.port, fleet.nameserver, fleet.zone) == (None, Address("127.0.0.1", 5353), "east")


def test_scaling_has_the_usual_rules() -> None:
    [pool] = settings_of(POOL % SCALING % "endpoints_max: 4").pools

    assert pool.scaling == ScalingRules(endpoints_max=4)


def test_objective_of_a_scaled_pool_is_the_strictest_of_the_classes_that_may_use_it() -> None:
    classes = """
classes:
  interactive: {ttft: 2s, objectives: {ttft_percent: 99.5}}
  batch: {ttft: 9s, objectives: {ttft_percent: 95}}
  quick: {band: 0, ttft: 1s, pools: [elsewhere], objectives: {ttft_percent: 99.9}}
"""
    text = POOL.replace("models:", "  elsewhere: {engine: llamacpp, in_flight_max: 4, endpoints: http://a:1}\nmodels:")
    text = text.replace("{smollm2: small}", "{smollm2: small, large: elsewhere}")
    [pool, _] = settings_of(text % (SCALING % "endpoints_max: 4, correction_percent_max: 150") + classes).pools

    assert pool.scaling == ScalingRules(endpoints_max=4, objective_ppm=995_000, correction_percent_max=150)


def test_scaling_is_read_in_the_units_of_the_core() -> None:
    text = (
        "endpoints_min: 2, endpoints_max: 9, warm_min: 3, load_percent: 60, cold_start: 40s, settle: 2m, idle: 1h, "
        "hourly_dollars: 2.5, budget_dollars: 20, "
        "calendar: [{name: launch, begins: 1970-01-01T01:00:01+01:00, ends: 1970-01-01T00:00:02.5Z, endpoints_min: 6}]"
    )
    [pool] = settings_of(POOL % SCALING % text).pools

    assert pool.scaling == ScalingRules(
        endpoints_min=2,
        endpoints_max=9,
        warm_min=3,
        load_percent=60,
        cold_start_ns=40 * SECOND,
        settle_ns=2 * MINUTE,
        idle_ns=60 * MINUTE,
        hourly_microdollars=2_500_000,
        budget_microdollars=20_000_000,
        calendar=(KnownEvent("launch", 1 * SECOND, 2_500_000_000, 6),),
    )


@pytest.mark.parametrize(
    ("fleet", "scaling", "begins"),
    [("", "endpoints_max: 4", 1), ("", "endpoints_max: 4, warm_min: 2", 2), (", endpoints: 3", "endpoints_max: 4", 3)],
)
def test_a_scaled_fleet_begins_within_its_bounds(fleet: str, scaling: str, begins: int) -> None:
    found = fleet_of(PROCESSES % fleet + ", scaling: {" + scaling + "}")

    assert isinstance(found, ProcessOptions)
    assert found.endpoints == begins


def test_a_pool_that_may_be_empty_holds_requests_and_another_does_not() -> None:
    empty = settings_of(POOL % SCALING % "endpoints_min: 0, endpoints_max: 4, hold_max: 9, cold_start: 1m" + PATIENT)
    always = settings_of(POOL % SCALING % "endpoints_max: 4, hold_max: 9, cold_start: 1m")

    assert [(each.hold_max, each.cold_start_ns) for each in empty.policy.pools] == [(9, MINUTE)]
    assert [each.start_wait_ns for each in empty.policy.classes] == [2 * MINUTE, None]
    assert [(each.hold_max, each.cold_start_ns) for each in always.policy.pools] == [(0, MINUTE)]


# What is said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoints: []", "endpoints: names no endpoint; list the address of at least one engine, or say in fleet"),
        ("fleet: proceses", 'fleet.kind: kind "proceses" is not known; did you mean "processes"?'),
        ("fleet: slurm", 'fleet.kind: kind "slurm" is not known; the kinds are static, dns, processes, ray'),
        ("fleet: dns", "fleet.name: missing; write the name to resolve, such as engines.default.svc.cluster.local"),
        (DNS % "name: http://a", "fleet.name: is not a name that can be resolved; write it without scheme"),
        (DNS % "name: a.svc", "fleet.port: missing; say where its engines listen, or name a service, such as _http"),
        (DNS % "name: _a._tcp.b, port: 1", "fleet.port: a service brings its ports; remove this, or name the host"),
        (DNS % "name: a, port: 1, zone: a b", "fleet.zone: a name is made of letters, digits, and . _ : -"),
        (
            DNS % "name: a, port: 1, command: x",
            "fleet.command: belongs to kind processes or ray, and the kind here is dns; remove it",
        ),
        (
            "endpoints: http://a:1, fleet: {zone: x}",
            "fleet.zone: belongs to kind dns or processes or ray, and the kind here is static; remove it",
        ),
        (
            "endpoints: http://a:1, " + PROCESSES % "",
            "endpoints: lists endpoints, and the fleet of kind processes finds its own; remove one of the two",
        ),
        ("fleet: processes", "fleet.command: missing; write how an engine is started, such as "),
        (
            'fleet: {kind: processes, command: "serve --port 80"}',
            "fleet.command: never says {port}, so every engine would listen at the same place; pass it to the engine",
        ),
        (
            'fleet: {kind: processes, command: "serve {port} {modl}"}',
            'fleet.command: {modl} stands for nothing; did you mean "model"?',
        ),
        (
            "fleet: {kind: processes, command: \"serve {port} 'x\"}",
            "fleet.command: holds a quote that is not closed; close it, or write the command as a list of words",
        ),
        (
            DNS % "name: engines, port: 1, starting_name: 'http://engines'",
            "fleet.starting_name: is not a name that can be resolved; write it without scheme, port or path",
        ),
        (
            DNS % "name: engines, port: 1, starting_name: _http._tcp.engines",
            "fleet.starting_name: must be a service if name is one, and a host if name is one; change one of them",
        ),
        (
            DNS % "name: engines, port: 1, starting_name: engines",
            "fleet.starting_name: is the same as name; use one that lists engines before they are ready, or remove it",
        ),
        (PROCESSES % ", endpoints: 0", "fleet.endpoints: must be at least 1 where no scaling starts others; raise it"),
        (PROCESSES % ', ports: "80:90"', "fleet.ports: are no ports that a program may take; stay between 1024 and"),
        (PROCESSES % ", environment: {A-B: x}", "fleet.environment.A-B: is no name of a variable; use letters"),
        (PROCESSES % ", restart: 2m", "fleet.restart_max: is less than restart, from which the pauses grow; raise it"),
        (
            PROCESSES % ", endpoints: 9" + ", scaling: {endpoints_max: 4}",
            "fleet.endpoints: is not between scaling.endpoints_min 1 and scaling.endpoints_max 4; change one of them",
        ),
        (
            PROCESSES % ", zone: 'rack-{slots}'",
            'fleet.command: {slots} stands for nothing; did you mean "slot"?',
        ),
        (SCALING % "", "scaling.endpoints_max: missing; say how many endpoints there may be"),
        (
            SCALING % "endpoints_min: 4, endpoints_max: 2",
            "scaling.endpoints_max: is less than endpoints_min 4, so nothing is between them; raise it",
        ),
        (
            SCALING % "warm_min: 4, endpoints_max: 2",
            "scaling.endpoints_max: is less than warm_min 4, which could never be kept; raise it",
        ),
        (
            SCALING % "endpoints_max: 2, budget_dollars: 4",
            "scaling.hourly_dollars: missing; say what an endpoint costs an hour, or remove budget_dollars",
        ),
        (
            SCALING % "endpoints_min: 3, endpoints_max: 4, hourly_dollars: 2, budget_dollars: 4",
            "scaling.budget_dollars: does not pay for endpoints_min 3 at 2 an hour; raise it",
        ),
        (
            SCALING % "endpoints_max: 4, calendar: [{name: x, begins: 2026-11-27, ends: 2026-11-28T00:00Z}]",
            'scaling.calendar[0].begins: expected a moment with its zone, such as 2026-11-27T08:00:00+01:00 or ',
        ),
        (
            SCALING % "endpoints_max: 4, calendar: [{name: x, begins: 2026-11-27T00:00Z, ends: 2026-11-26T00:00Z, "
            "endpoints_min: 5}]",
            "scaling.calendar[0].ends: is not after begins; change one of them",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_next_step(text: str, said: str) -> None:
    problems = said_of(text)

    assert problems
    assert problems[0].startswith(said), problems


def test_a_fleet_needs_to_know_how_much_an_endpoint_takes() -> None:
    text = POOL.replace("in_flight_max: 4, ", "") % DNS % "name: a, port: 1"

    assert problems_of(text) == [
        (
            "2: pools.small.in_flight_max: missing; say how many requests an endpoint may hold at once "
            "(llama.cpp: its --parallel; vLLM: try 64)"
        )
    ]


def test_a_budget_that_pays_to_the_cent_is_enough() -> None:
    text = "endpoints_min: 3, endpoints_max: 4, hourly_dollars: 0.1, budget_dollars: 0.3"

    assert [pool.name for pool in settings_of(POOL % (SCALING % text)).pools] == ["small"]


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("warm_min: 3, ", "does not pay for warm_min 3 at 2 an hour, so fewer are kept; raise it"),
        (
            "calendar: [{name: launch, begins: 2026-11-27T00:00Z, ends: 2026-11-28T00:00Z, endpoints_min: 4}], ",
            "does not pay for the 4 endpoints of launch in calendar at 2 an hour, so fewer are there; raise it",
        ),
    ],
)
def test_what_the_budget_leaves_undone_is_warned_of(text: str, warned: str) -> None:
    scaling = SCALING % f"{text}endpoints_max: 4, hourly_dollars: 2, budget_dollars: 4"

    [warning] = warnings_of(POOL % scaling)
    assert warning.endswith(f"pools.small.scaling.budget_dollars: {warned}")


@pytest.mark.parametrize(
    ("classes", "who"),
    [
        ("", "class interactive or long or batch"),
        ("classes: {interactive: {}, batch: {start_wait: 2m, pools: []}}", None),
        ("classes: {interactive: {}}", "class interactive"),
    ],
)
def test_where_a_pool_may_be_empty_somebody_must_wait_for_a_start(classes: str, who: str | None) -> None:
    wrong = f"is 0, and nobody waits for an endpoint to start; set start_wait on {who}, or raise this to 1"
    told = [] if who is None else [f"2: pools.small.scaling.endpoints_min: {wrong}"]

    assert problems_of(POOL % SCALING % "endpoints_min: 0, endpoints_max: 4" + classes) == told


def test_a_class_that_may_not_use_the_pool_does_not_count() -> None:
    other = "  spare: {engine: llamacpp, in_flight_max: 1, endpoints: http://a:1}\nmodels:"
    text = (POOL % SCALING % "endpoints_min: 0, endpoints_max: 4").replace("models:", other)

    assert problems_of(text + "classes: {interactive: {pools: spare, start_wait: 3m}}") == [
        (
            "2: pools.small.scaling.endpoints_min: is 0, and nobody waits for an endpoint to start; "
            "set start_wait on a class that may use the pool, or raise this to 1"
        )
    ]


def test_who_waits_for_less_than_a_start_takes_is_warned_of() -> None:
    text = POOL % SCALING % "endpoints_min: 0, endpoints_max: 4, cold_start: 3m" + PATIENT

    assert warnings_of(text) == [
        (
            "6: classes.interactive.start_wait: is less than the 180 s that pools.small.scaling.cold_start says, so "
            "those who wait for its first endpoint are refused before it serves; raise it, or correct the other"
        )
    ]


def test_scaling_a_list_is_warned_of() -> None:
    assert warnings_of(POOL % "endpoints: http://a:1, scaling: {endpoints_max: 2}") == [
        (
            "2: pools.small.scaling: how many endpoints are wanted is only told, since those of a list stay; "
            "use another fleet"
        )
    ]


def test_a_fleet_in_a_ray_cluster_needs_an_interpreter_and_little_else() -> None:
    fleet = fleet_of(
        'fleet: {kind: ray, python: /ray/bin/python, command: "serve --host {host} --port {port}", gpus: 1}'
    )

    assert isinstance(fleet, ProcessOptions)
    assert fleet.ray == RayOptions(python="/ray/bin/python", address="auto", cpus=1.0, gpus=1.0, resources={})


def test_no_slow_start_is_a_setting_too() -> None:
    text = POOL % "endpoints: http://a:1" + "health: {slow_start: 0s}\n"

    assert settings_of(text).policy.health.slow_start_ns == 0
