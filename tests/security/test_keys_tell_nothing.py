"""Does the check of a key tell anything about the keys that exist?

A key is never compared: its keyed hash is looked up. So the time of the check depends on the length of what was sent
and on nothing else.
"""

import ast
import inspect
import statistics
import time
from collections.abc import Iterator, Mapping

import pytest

from headgate.control import directory_sync as directory
from headgate.edge import auth, intake
from headgate.edge.admin import api as admin_api
from headgate.edge.admin import tenants
from headgate.edge.auth import KeyRing
from headgate.model.units import TenantId
from headgate.wire import keys
from headgate.wire.keys import digest

SECRET = b"a secret of the gateway"
KEY = "hg-" + "k" * 40
RATIO_MAX = 1.5
"""Between medians of checks that take the same path; a comparison that stops at the first difference would still stay
below it, so the structure is looked at as well."""


class Watched(Mapping[bytes, TenantId]):
    """Known keys that remember what they were asked for."""

    def __init__(self, known: dict[bytes, TenantId]) -> None:
        self._known = known
        self.asked: list[bytes] = []

    def __getitem__(self, item: bytes) -> TenantId:
        self.asked.append(item)
        return self._known[item]

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("no key is looked at one by one")

    def __len__(self) -> int:
        return len(self._known)


def test_only_the_keyed_hash_of_a_key_is_looked_up() -> None:
    known = Watched({digest(SECRET, KEY): TenantId("acme")})
    ring = KeyRing(SECRET, known, None)

    assert ring.tenant(b"Bearer " + KEY.encode()) == "acme"
    assert ring.tenant(b"Bearer " + KEY[:-1].encode()) is None
    assert known.asked == [digest(SECRET, KEY), digest(SECRET, KEY[:-1])]


def test_a_hash_of_the_file_is_not_a_key() -> None:
    known = digest(SECRET, KEY)
    ring = KeyRing(SECRET, {known: TenantId("acme")}, None)

    for presented in (known, known.hex().encode(), keys.format_digest(known).encode()):
        assert ring.tenant(b"Bearer " + presented) is None


def test_the_hash_depends_on_the_secret() -> None:
    assert digest(b"one", KEY) != digest(b"two", KEY)
    assert len(digest(SECRET, "")) == len(digest(SECRET, "x" * 10_000)) == 32


@pytest.mark.parametrize("module", [auth, keys, intake, directory, admin_api, tenants])
def test_no_key_is_compared_anywhere_on_the_way(module: object) -> None:
    """Equality is used for the scheme's name alone; `in`, `startswith` and their like not at all on what was sent."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    compared = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops)
    }

    assert {text for text in compared if "key" in text.lower() or "secret" in text.lower()} == set()


def test_an_operators_key_is_compared_whole_with_every_known_one() -> None:
    """There are few, so all are looked at: in constant time each, and none of them ends the search."""
    [search] = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(admin_api)))
        if isinstance(node, ast.FunctionDef) and node.name == "_operator"
    ]
    [loop] = [node for node in ast.walk(search) if isinstance(node, ast.For)]
    [test] = [node.test for node in ast.walk(loop) if isinstance(node, ast.If)]

    assert ast.unparse(test) == "hmac.compare_digest(known, shown)"
    assert [node for node in ast.walk(loop) if isinstance(node, ast.Return | ast.Break | ast.Raise)] == []


def test_a_key_of_the_database_is_looked_up_by_its_hash_and_never_walked_to() -> None:
    source = inspect.getsource(directory.LiveDirectory.find)

    assert "self._picture.keys.get(known)" in source
    assert [node for node in ast.walk(ast.parse(source.strip())) if isinstance(node, ast.For | ast.While)] == []


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"bearer  ",
        b"Bearer \xff\xfe",
        b"Bearer " + b"x" * 60_000,
        b"Basic aGk6aGk=",
        b"Bearer " + KEY.encode() + b",Bearer x",
        b"Bearer '" + KEY.encode() + b"'",
        b"Bearer " + KEY.upper().encode(),
        KEY.encode(),
    ],
)
def test_anything_else_is_nobody(odd: bytes) -> None:
    ring = KeyRing(SECRET, {digest(SECRET, KEY): TenantId("acme")}, None)

    assert ring.tenant(odd) is None


def test_a_right_beginning_takes_no_longer_than_a_wrong_one() -> None:
    ring = KeyRing(SECRET, {digest(SECRET, f"{KEY}{number}"): TenantId("acme") for number in range(1000)}, None)
    near = b"Bearer " + KEY.encode() + b"9999"
    far = b"Bearer " + b"z" * (len(near) - 7)
    took: dict[bytes, list[int]] = {near: [], far: []}
    for _ in range(5_000):
        for presented, times in took.items():  # By turns, so that whatever disturbs the machine disturbs both.
            began = time.perf_counter_ns()
            ring.tenant(presented)
            times.append(time.perf_counter_ns() - began)

    ratio = statistics.median(took[near]) / statistics.median(took[far])
    assert 1 / RATIO_MAX < ratio < RATIO_MAX
