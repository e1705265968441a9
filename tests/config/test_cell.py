"""With whom does a gateway share its queue, by the file?"""

import json

import pytest

from headgate.config.cell import member_name
from headgate.config.explain import as_data, explain
from headgate.config.problems import ConfigErrors
from headgate.hosts.cell.options import CellOptions
from tests.config.builders import SMALL, problems_of, settings_of, small_with, warnings_of

CANARY = "canary-5f1d"
STORE = "redis://cache:6379/0"


def with_cell(cell: str) -> str:
    """The small file with this section, on line 8."""
    return small_with(f"cell: {{{cell}}}")


def cell_of(cell: str, **environ: str) -> CellOptions:
    found = settings_of(with_cell(cell), environ).cell
    assert found is not None
    return found


def stored_as(url: str) -> str:
    return cell_of(f"store: '{url}', members: 2").store


# What it comes to


def test_left_out_a_gateway_is_alone() -> None:
    assert settings_of(SMALL).cell is None
    assert settings_of(small_with("cell:")).cell is None


def test_only_the_store_must_be_named() -> None:
    assert cell_of(f"store: '{STORE}'") == CellOptions(
        store=STORE, store_shown=STORE, name="headgate", member=None, members=1, gateways_schedule=True
    )


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
        ("rediss+sentinel://u:p@a/m/7?ca=f", "rediss+sentinel://u:p@a:26379/m/7?ca=f"),
    ],
)
def test_what_an_address_leaves_out_is_filled_in(written: str, whole: str) -> None:
    assert stored_as(written) == whole


# What is wrong


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("name: east", "store: missing; write where the cell's Redis or Valkey is, such as redis://cache:6379"),
        ("store: {a: b}", "store: expected text"),
        ("store: 'http://cache'", "store: is no address of a store; begin it with redis, rediss, redis+sentinel or"),
        ("store: cache", "store: is no address of a store; begin it with"),
        ("store: 'cache:6379'", "store: is no address of a store; begin it with"),
        ("store: 'redis://'", "store: the host is missing or misspelt; write HOST:PORT"),
        ("store: 'redis:///0'", "store: the host is missing or misspelt; write HOST:PORT"),
        ("store: 'redis://:p@'", "store: the host is missing or misspelt; write HOST:PORT"),
        ("store: 'redis://a b'", "store: the host is missing or misspelt; write HOST:PORT"),
        ("store: 'redis://a:0'", "store: the host or its port is no such thing; write HOST:PORT"),
        ("store: 'redis://a:70000'", "store: the host is missing or misspelt; write HOST:PORT"),
        ("store: 'redis://a,b'", "store: names several hosts; write redis+sentinel:// where they are sentinels"),
        ("store: 'redis://a/x'", "store: its end is no number of a database; write a number there"),
        ("store: 'redis://a/0/1'", "store: its end is no number of a database; write a number there"),
        ("store: 'redis+sentinel://a'", "store: does not say which master; write its name, as sentinels know it"),
        ("store: 'redis+sentinel://a//1'", "store: does not say which master; write its name"),
        ("store: 'redis+sentinel://a,/m'", "store: the host is missing or misspelt; write HOST:PORT"),
        ("store: 'redis://u@a'", "store: the password is missing or holds a sign that has a meaning"),
        ("store: 'redis://u:p:q@a'", "store: the password is missing or holds a sign that has a meaning"),
        ("store: 'redis://u:p/q@a'", "store: holds a / ? # or @ inside the password; write these as"),
        ("store: 'redis://u:p?q@a'", "store: holds a / ? # or @ inside the password; write these as"),
        ("store: 'redis://u:p#q@a'", "store: holds a / ? # or @ inside the password; write these as"),
        ("store: 'rediss://a?cert=f'", "store: only ca=FILE may stand after the question mark; take out the rest"),
        ("store: 'rediss://a?ca='", "store: only ca=FILE may stand after the question mark; take out the rest"),
        ("store: 'redis://a?ca=f'", "store: names an authority, and the connection has no TLS; write rediss"),
        (f"store: '{STORE}', members: 0", "members: must be at least 1, not 0"),
        (f"store: '{STORE}', name: 'a b'", "name: a name is made of up to 64 letters"),
        (f"store: '{STORE}', name: '{{x}}'", "name: a name is made of up to 64 letters"),
        (f"store: '{STORE}', member: 'a b'", "member: a member's name is made of up to 128 letters, digits, and"),
        (f"store: '{STORE}', member: {'x' * 129}", "member: a member's name is made of up to 128 letters, digits, and"),
        (f"store: '{STORE}', gateways_schedule: perhaps", "gateways_schedule: expected true or false"),
        (f"store: '{STORE}', memebrs: 2", 'memebrs: unknown key; did you mean "members"?'),
    ],
)
def test_what_is_wrong_is_told_with_the_next_step(cell: str, said: str) -> None:
    [problem] = problems_of(with_cell(cell))

    assert problem.startswith(f"8: cell.{said}"), problem


@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_engines_that_each_gateway_would_start_are_refused(kind: str) -> None:
    python = ", python: /usr/bin/python3" if kind == "ray" else ""
    fleet = f"fleet: {{kind: {kind}, command: 'serve --port {{port}}'{python}}}"
    alone = SMALL.replace('endpoints: ["http://127.0.0.1:8081"]', fleet)
    [problem] = problems_of(alone.lstrip("\n") + f"cell: {{store: '{STORE}', members: 2}}\n")

    assert problems_of(alone) == []
    assert problem == (
        f"2: pools.small.fleet.kind: is {kind}, and each gateway of the cell would start engines of its own; use "
        "static or dns, with an autoscaler such as KEDA where their number changes, or take out cell"
    )


def test_that_a_cell_has_one_gateway_is_worth_a_warning() -> None:
    [warning] = warnings_of(with_cell(f"store: '{STORE}'"))

    assert warning == (
        "8: cell.members: is 1, so each gateway that starts while the store is away takes everything there is for "
        "itself; say how many gateways the cell has"
    )
    assert warnings_of(with_cell(f"store: '{STORE}', members: 2")) == []


def test_that_a_scaler_is_asked_of_one_of_a_cell_is_worth_a_warning() -> None:
    [warning] = warnings_of(with_cell(f"store: '{STORE}', members: 2") + "\nscaler_listen: 127.0.0.1:9091\n")

    assert "only the scheduler of a cell knows" in warning
    assert "headgate_endpoints_wanted" in warning


# Its name


@pytest.mark.parametrize(
    ("written", "worker", "name"),
    [
        ("", None, "my-host-8080"),
        ("", 3, "my-host-8080-3"),
        (", member: pod-7", None, "pod-7"),
        (", member: '${POD}'", 0, "pod-x-0"),
        (f", member: {'x' * 128}", 12, "x" * 125 + "-12"),
    ],
)
def test_a_member_is_called_as_the_file_says_else_after_its_host_and_port(
    written: str, worker: int | None, name: str
) -> None:
    settings = settings_of(with_cell(f"store: '{STORE}'{written}"), {"POD": "pod-x"})

    assert member_name(settings, "my host", worker=worker) == name


def test_a_scheduler_and_a_gateway_may_run_by_one_file() -> None:
    settings = settings_of(with_cell(f"store: '{STORE}', member: gw-1"))

    assert member_name(settings, "h", serves=False) == "gw-1-scheduler"


# What is shown


def test_it_is_explained_in_words_and_as_data() -> None:
    usual = settings_of(with_cell("store: 'redis://u:p@cache', members: 4"))
    apart = settings_of(with_cell(f"store: '{STORE}', name: east, member: gw-1, gateways_schedule: false"))

    assert (
        "cell headgate: 4 gateways share one queue through redis://u:***@cache:6379/0, "
        "this one called after its host and port; one of them schedules"
    ) in list(explain(usual))
    assert (
        f"cell east: 1 gateway share one queue through {STORE}, this one as gw-1; "
        "`headgate scheduler` schedules, so keep one running"
    ) in list(explain(apart))
    assert as_data(usual)["cell"] == {
        "store": "redis://u:***@cache:6379/0",
        "name": "headgate",
        "member": None,
        "members": 4,
        "gateways_schedule": True,
    }


@pytest.mark.parametrize("url", ["redis://u:${S}@cache", "rediss+sentinel://:${S}@a,b/m", "${URL}"])
def test_a_password_is_never_shown(url: str) -> None:
    settings = settings_of(with_cell(f"store: '{url}'"), {"S": CANARY, "URL": f"redis://:{CANARY}@cache"})

    assert settings.cell is not None
    assert CANARY in settings.cell.store
    assert CANARY not in repr(settings)
    assert CANARY not in json.dumps(as_data(settings))
    assert CANARY not in "\n".join([*explain(settings), *settings.warnings])


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
def test_no_message_about_a_store_repeats_it(url: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        settings_of(with_cell(f"store: '{url}'"), {"S": CANARY})

    assert CANARY not in str(raised.value)


# Who has the same


def hash_of(text: str, **environ: str) -> str:
    return settings_of(text, environ).hash


@pytest.mark.parametrize(
    "other",
    [
        "store: 'redis://cache:6379/0', members: 3",
        "store: 'redis://cache:6379/1', members: 2",
        "store: 'redis://u:p@cache:6379/0', members: 2",
        "store: 'redis://cache:6379/0', members: 2, name: east",
        "store: 'redis://cache:6379/0', members: 2, gateways_schedule: false",
    ],
)
def test_another_cell_is_another_configuration(other: str) -> None:
    usual = hash_of(with_cell(f"store: '{STORE}', members: 2"))

    assert len({usual, hash_of(with_cell(other)), hash_of(SMALL)}) == 3


def test_another_password_is_another_configuration() -> None:
    text = with_cell("store: 'redis://:${S}@cache', members: 2")

    assert hash_of(text, S="one") != hash_of(text, S="two")


def test_what_a_member_is_called_is_its_own() -> None:
    text = with_cell(f"store: '{STORE}', members: 2, member: '${{POD}}'")

    assert hash_of(text, POD="a") == hash_of(text, POD="b")


@pytest.mark.parametrize(
    "own", ["listen: 127.0.0.1:8082", "admin_listen: 127.0.0.1:9999", "scaler_listen: 127.0.0.1:9998", "zone: b"]
)
def test_where_a_gateway_listens_and_stands_is_its_own(own: str) -> None:
    usual = with_cell(f"store: '{STORE}', members: 2")

    assert hash_of(usual + own) == hash_of(usual)
    assert hash_of(SMALL + own) != hash_of(SMALL)


def test_what_is_decided_by_is_everybodys() -> None:
    usual = with_cell(f"store: '{STORE}', members: 2")

    assert hash_of(usual + "fairness_depth: 2") != hash_of(usual)
