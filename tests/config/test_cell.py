"""Cell options, the store URL and member names."""

import json

import pytest

from headgate.config.cell import member_name
from headgate.config.problems import ConfigErrors
from headgate.config.summary import summary_data, summary_lines
from headgate.hosts.cell.options import CellOptions
from tests.config.builders import SMALL, problems_of, settings_of, small_with, warnings_of

CANARY = "canary-5f1d"
STORE = "redis://cache:6379/0"


def with_cell(cell: str) -> str:
    """The small file with this `cell` section, on line 8."""
    return small_with(f"cell: {{{cell}}}")


def cell_of(cell: str, **environ: str) -> CellOptions:
    found = settings_of(with_cell(cell), environ).cell
    assert found is not None
    return found


def stored_as(url: str) -> str:
    return cell_of(f"store: '{url}', member_count: 2").store


# Options


def test_gateway_has_no_cell_by_default() -> None:
    assert settings_of(SMALL).cell is None
    assert settings_of(small_with("cell:")).cell is None


def test_cell_requires_only_the_store() -> None:
    assert cell_of(f"store: '{STORE}'") == CellOptions(
        store=STORE, store_shown=STORE, name="headgate", member_name=None, member_count=1, gateways_are_candidates=True
    )


def test_share_floor_is_read_in_percent() -> None:
    assert cell_of(f"store: '{STORE}', member_count: 2").share_floor_ppm == 1_000_000
    assert cell_of(f"store: '{STORE}', member_count: 2, share_floor_percent: 25").share_floor_ppm == 250_000


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ("redis://cache", "redis://cache:6379/0"),
        ("redis://cache/", "redis://cache:6379/0"),
        ("redis://10.0.0.7:7000/3", "redis://10.0.0.7:7000/3"),
        ("redis://[fd00::1]", "redis://[fd00::1]:6379/0"),
        ("redis://[fd00::1]:7000", "redis://[fd00::1]:7000/0"),
        ("rediss://:p%40ss@cache:1/2", "rediss://:p%40ss@cache:1/2"),
        ("rediss://u:p@cache?ca=/etc/ssl/my ca.pem", "rediss://u:p@cache:6379/0?ca=/etc/ssl/my%20ca.pem"),
        ("redis+sentinel://a,b:1,c/mymaster", "redis+sentinel://a:26379,b:1,c:26379/mymaster/0"),
        ("rediss://c?key=k&certificate=c d", "rediss://c:6379/0?certificate=c%20d&key=k"),
        ("rediss+sentinel://u:p@a/m/7?ca=f", "rediss+sentinel://u:p@a:26379/m/7?ca=f"),
    ],
)
def test_store_url_is_completed_with_defaults(written: str, whole: str) -> None:
    assert stored_as(written) == whole


# Problems


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("name: east", "store: missing; set the URL of the cell's Redis or Valkey, such as redis://cache:6379"),
        ("store: {a: b}", "store: expected text"),
        ("store: 'http://cache'", "store: is not a store URL; start it with redis, rediss, redis+sentinel or"),
        ("store: cache", "store: is not a store URL; start it with"),
        ("store: 'cache:6379'", "store: is not a store URL; start it with"),
        ("store: 'redis://'", "store: has no valid host; write HOST:PORT"),
        ("store: 'redis:///0'", "store: has no valid host; write HOST:PORT"),
        ("store: 'redis://:p@'", "store: has no valid host; write HOST:PORT"),
        ("store: 'redis://a b'", "store: has no valid host; write HOST:PORT"),
        ("store: 'redis://a:0'", "store: has no valid host or port; write HOST:PORT"),
        ("store: 'redis://a:70000'", "store: has no valid host; write HOST:PORT"),
        ("store: 'redis://a,b'", "store: has several hosts; use redis+sentinel:// if they are sentinels"),
        ("store: 'redis://a/x'", "store: does not end with a database number; write one"),
        ("store: 'redis://a/0/1'", "store: does not end with a database number; write one"),
        ("store: 'redis+sentinel://a'", "store: has no master name; write the name known to the sentinels"),
        ("store: 'redis+sentinel://a//1'", "store: has no master name; write the name"),
        ("store: 'redis+sentinel://a,/m'", "store: has no valid host; write HOST:PORT"),
        ("store: 'redis://u@a'", "store: has no password, or one with reserved characters"),
        ("store: 'redis://u:p:q@a'", "store: has no password, or one with reserved characters"),
        ("store: 'redis://u:p/q@a'", "store: has / ? # or @ in the password; write these as"),
        ("store: 'redis://u:p?q@a'", "store: has / ? # or @ in the password; write these as"),
        ("store: 'redis://u:p#q@a'", "store: has / ? # or @ in the password; write these as"),
        ("store: 'rediss://a?cert=f'", "store: has an unknown option after the question mark; only ca=FILE, cert"),
        ("store: 'rediss://a?ca='", "store: has an unknown option after the question mark; only ca=FILE, certificate"),
        ("store: 'rediss://a?key=k'", "store: has a key without a certificate; add certificate=FILE"),
        ("store: 'redis://a?ca=f'", "store: has a ca, but the connection does not use TLS; use rediss"),
        (f"store: '{STORE}', member_count: 0", "member_count: must be at least 1, not 0"),
        (f"store: '{STORE}', name: 'a b'", "name: a name must have 1 to 64 characters"),
        (f"store: '{STORE}', name: '{{x}}'", "name: a name must have 1 to 64 characters"),
        (f"store: '{STORE}', member_name: 'a b'", "member_name: must have 1 to 128 characters"),
        (f"store: '{STORE}', member_name: {'x' * 129}", "member_name: must have 1 to 128 characters"),
        (f"store: '{STORE}', gateways_are_candidates: perhaps", "gateways_are_candidates: expected true or false"),
        (f"store: '{STORE}', member_cuont: 2", 'member_cuont: unknown key; did you mean "member_count"?'),
    ],
)
def test_invalid_cell_setting_is_reported_with_next_step(cell: str, said: str) -> None:
    [problem] = problems_of(with_cell(cell))

    assert problem.startswith(f"8: cell.{said}"), problem


@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_cell_rejects_fleets_that_start_engines(kind: str) -> None:
    python = ", python: /usr/bin/python3" if kind == "ray" else ""
    fleet = f"fleet: {{kind: {kind}, command: 'serve --port {{port}}'{python}}}"
    alone = SMALL.replace('endpoints: ["http://127.0.0.1:8081"]', fleet)
    [problem] = problems_of(alone.lstrip("\n") + f"cell: {{store: '{STORE}', member_count: 2}}\n")

    assert problems_of(alone) == []
    assert problem == (
        f"2: pools.small.fleet.kind: is {kind}, so each gateway of the cell would start its own engines; "
        "use static or dns, with an autoscaler such as KEDA if their number changes, or remove cell"
    )


def test_cell_with_one_member_causes_a_warning() -> None:
    [warning] = warnings_of(with_cell(f"store: '{STORE}'"))

    assert warning == (
        "8: cell.member_count: is 1, so each gateway that starts while the store is unreachable uses all "
        "slots and limits; set it to the number of gateways in the cell"
    )
    assert warnings_of(with_cell(f"store: '{STORE}', member_count: 2")) == []


def test_scaler_listener_in_a_cell_causes_a_warning() -> None:
    [warning] = warnings_of(with_cell(f"store: '{STORE}', member_count: 2") + "\nscaler_listen: 127.0.0.1:9091\n")

    assert "only the scheduler of a cell knows" in warning
    assert "headgate_endpoints_desired" in warning


# Member names


@pytest.mark.parametrize(
    ("written", "worker", "name"),
    [
        ("", None, "my-host-8080"),
        ("", 3, "my-host-8080-3"),
        (", member_name: pod-7", None, "pod-7"),
        (", member_name: '${POD}'", 0, "pod-x-0"),
        (f", member_name: {'x' * 128}", 12, "x" * 125 + "-12"),
    ],
)
def test_member_name_defaults_to_host_and_port(written: str, worker: int | None, name: str) -> None:
    settings = settings_of(with_cell(f"store: '{STORE}'{written}"), {"POD": "pod-x"})

    assert member_name(settings, "my host", worker=worker) == name


def test_scheduler_and_gateway_from_the_same_file_have_different_names() -> None:
    settings = settings_of(with_cell(f"store: '{STORE}', member_name: gw-1"))

    assert member_name(settings, "h", serves=False) == "gw-1-scheduler"


# Output


def test_summary_shows_the_cell() -> None:
    usual = settings_of(with_cell("store: 'redis://u:p@cache', member_count: 4"))
    apart = settings_of(with_cell(f"store: '{STORE}', name: east, member_name: gw-1, gateways_are_candidates: false"))

    assert (
        "cell headgate: 4 gateways with a shared queue in redis://u:***@cache:6379/0, named by host and "
        "port; one of them is the scheduler"
    ) in list(summary_lines(usual))
    assert (
        f"cell east: 1 gateway with a shared queue in {STORE}, this one is gw-1; "
        "the scheduler is a separate `headgate scheduler` process, which must be running"
    ) in list(summary_lines(apart))
    floor = settings_of(with_cell(f"store: '{STORE}', member_count: 4, share_floor_percent: 25"))
    [line] = [each for each in summary_lines(floor) if each.startswith("cell ")]
    assert line.endswith("; without a lease, it uses 25 % of each tenant's limits")
    assert summary_data(usual)["cell"] == {
        "store": "redis://u:***@cache:6379/0",
        "name": "headgate",
        "member_name": None,
        "member_count": 4,
        "gateways_are_candidates": True,
        "share_floor_ppm": 1_000_000,
    }


@pytest.mark.parametrize("url", ["redis://u:${S}@cache", "rediss+sentinel://:${S}@a,b/m", "${URL}"])
def test_store_password_is_never_shown(url: str) -> None:
    settings = settings_of(with_cell(f"store: '{url}'"), {"S": CANARY, "URL": f"redis://:{CANARY}@cache"})

    assert settings.cell is not None
    assert CANARY in settings.cell.store
    assert CANARY not in repr(settings)
    assert CANARY not in json.dumps(summary_data(settings))
    assert CANARY not in "\n".join([*summary_lines(settings), *settings.warnings])


@pytest.mark.parametrize(
    "url",
    [
        "${S}",
        "http://u:${S}@cache",
        "redis://u:${S}@",
        "redis://u:${S}@a b",
        "redis://${S}@cache",
        "redis://u:x/${S}@cache",
        "redis://u:${S}@cache/x",
        "redis://u:${S}@cache?password=${S}",
        "redis+sentinel://u:${S}@cache",
        "redis://u:${S}@cache:99999",
        f"redis://u:{CANARY}@cache:99999",
    ],
)
def test_problem_message_does_not_quote_the_store_url(url: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        settings_of(with_cell(f"store: '{url}'"), {"S": CANARY})

    assert CANARY not in str(raised.value)


# Hash


def hash_of(text: str, **environ: str) -> str:
    return settings_of(text, environ).hash


@pytest.mark.parametrize(
    "other",
    [
        "store: 'redis://cache:6379/0', member_count: 3",
        "store: 'redis://cache:6379/1', member_count: 2",
        "store: 'redis://u:p@cache:6379/0', member_count: 2",
        "store: 'redis://cache:6379/0', member_count: 2, name: east",
        "store: 'redis://cache:6379/0', member_count: 2, gateways_are_candidates: false",
    ],
)
def test_cell_settings_change_the_hash(other: str) -> None:
    usual = hash_of(with_cell(f"store: '{STORE}', member_count: 2"))

    assert len({usual, hash_of(with_cell(other)), hash_of(SMALL)}) == 3


def test_store_password_changes_the_hash() -> None:
    text = with_cell("store: 'redis://:${S}@cache', member_count: 2")

    assert hash_of(text, S="one") != hash_of(text, S="two")


def test_member_name_does_not_change_the_hash() -> None:
    text = with_cell(f"store: '{STORE}', member_count: 2, member_name: '${{POD}}'")

    assert hash_of(text, POD="a") == hash_of(text, POD="b")


@pytest.mark.parametrize(
    "own", ["listen: 127.0.0.1:8082", "admin_listen: 127.0.0.1:9999", "scaler_listen: 127.0.0.1:9998", "zone: b"]
)
def test_addresses_and_zone_do_not_change_the_hash_in_a_cell(own: str) -> None:
    usual = with_cell(f"store: '{STORE}', member_count: 2")

    assert hash_of(usual + own) == hash_of(usual)
    assert hash_of(SMALL + own) != hash_of(SMALL)


def test_policy_settings_change_the_hash_in_a_cell() -> None:
    usual = with_cell(f"store: '{STORE}', member_count: 2")

    assert hash_of(usual + "fairness_depth: 2") != hash_of(usual)
