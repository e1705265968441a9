"""The time a key check takes reveals nothing about existing keys.

Keys are not compared. The gateway looks up the keyed hash, so the time depends only on the length of the presented key.
"""

import ast
import inspect
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

import headgate
from headgate.control import directory_sync as directory
from headgate.edge import auth, parsed_request
from headgate.edge.admin import api as admin_api
from headgate.edge.admin import operator_auth, tenants
from headgate.edge.auth import KeyRing, KeyUnverified, SecretUse
from headgate.model.units import TenantId
from headgate.wire import keys
from headgate.wire.keys import digest

PACKAGE = Path(str(headgate.__file__)).parent
"""Contains the sources in both builds. `inspect` does not find those of compiled modules."""
SECRET = b"a secret of the gateway"
KEY = "hg-" + "k" * 40
RATIO_MAX = 1.5
"""Upper bound on the ratio between the median times. A comparison that stops at the first difference could stay below
it, so the source code is checked as well.
"""


class Watched(Mapping[bytes, TenantId]):
    """Known keys that record each lookup."""

    def __init__(self, known: dict[bytes, TenantId]) -> None:
        self._known = known
        self.asked: list[bytes] = []

    def __getitem__(self, item: bytes) -> TenantId:
        self.asked.append(item)
        return self._known[item]

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("keys must not be iterated")

    def __len__(self) -> int:
        return len(self._known)


def test_only_the_keyed_hash_of_a_key_is_looked_up() -> None:
    known = Watched({digest(SECRET, KEY): TenantId("acme")})
    ring = KeyRing({SECRET: SecretUse()}, known, None)

    assert ring.tenant(b"Bearer " + KEY.encode()) == "acme"
    assert ring.tenant(b"Bearer " + KEY[:-1].encode()) is None
    assert known.asked == [digest(SECRET, KEY), digest(SECRET, KEY[:-1])]


def test_configured_hash_is_not_accepted_as_a_key() -> None:
    known = digest(SECRET, KEY)
    ring = KeyRing({SECRET: SecretUse()}, {known: TenantId("acme")}, None)

    for presented in (known, known.hex().encode(), keys.format_digest(known).encode()):
        assert ring.tenant(b"Bearer " + presented) is None


def test_hash_depends_on_the_secret() -> None:
    assert digest(b"one", KEY) != digest(b"two", KEY)
    assert len(digest(SECRET, "")) == len(digest(SECRET, "x" * 10_000)) == 32


@pytest.mark.parametrize("module", [auth, keys, parsed_request, directory, admin_api, operator_auth, tenants])
def test_request_path_never_compares_keys(module: ModuleType) -> None:
    """Finds every `==` and `!=` on a key or secret in the module's source."""
    path = PACKAGE.joinpath(*module.__name__.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text())
    compared = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops)
    }

    assert {text for text in compared if "key" in text.lower() or "secret" in text.lower()} == set()


def test_operator_key_is_compared_with_every_known_key_in_constant_time() -> None:
    """There are few operator keys. Each is compared in constant time, and a match does not end the loop."""
    [search] = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(operator_auth)))
        if isinstance(node, ast.FunctionDef) and node.name == "_find"
    ]
    loop, inner = (node for node in ast.walk(search) if isinstance(node, ast.For))
    [test] = [node.test for node in ast.walk(inner) if isinstance(node, ast.If)]
    assert inner in ast.walk(loop)

    assert ast.unparse(test) == "hmac.compare_digest(known, shown)"
    assert [node for node in ast.walk(loop) if isinstance(node, ast.Return | ast.Break | ast.Raise)] == []


def test_database_key_is_looked_up_by_its_hash() -> None:
    source = inspect.getsource(directory.DirectorySync.find)

    assert "self._snapshot.keys.get(digest)" in source
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
def test_malformed_authorization_is_rejected(odd: bytes) -> None:
    ring = KeyRing({SECRET: SecretUse()}, {digest(SECRET, KEY): TenantId("acme")}, None)

    assert ring.tenant(odd) is None


def test_check_time_does_not_depend_on_the_length_of_a_matching_prefix() -> None:
    ring = KeyRing(
        {SECRET: SecretUse()}, {digest(SECRET, f"{KEY}{number}"): TenantId("acme") for number in range(1000)}, None
    )
    near = b"Bearer " + KEY.encode() + b"9999"
    far = b"Bearer " + b"z" * (len(near) - 7)
    took: dict[bytes, list[int]] = {near: [], far: []}
    for _ in range(5_000):
        for presented, times in took.items():  # Alternate between the two, so that other work affects both equally.
            began = time.perf_counter_ns()
            ring.tenant(presented)
            times.append(time.perf_counter_ns() - began)

    ratio = statistics.median(took[near]) / statistics.median(took[far])
    assert 1 / RATIO_MAX < ratio < RATIO_MAX


def test_key_may_be_hashed_with_any_secret_and_uses_are_counted() -> None:
    new, old = SecretUse(), SecretUse()
    known = {digest(b"new", "hg-1"): TenantId("acme"), digest(b"old", "hg-2"): TenantId("bolt")}
    ring = KeyRing({b"new": new, b"old": old}, known, TenantId("nobody"))

    found = [ring.tenant(b"Bearer hg-" + number) for number in (b"1", b"2", b"2", b"3")]

    assert found == ["acme", "bolt", "bolt", None]
    assert (new.keys_verified, old.keys_verified) == (1, 2)
    assert ring.tenant(None) == "nobody"


class StaleDirectory:
    """Knows the keys of one tenant and can neither accept nor reject any other key."""

    def find(self, digest: bytes) -> TenantId | None:
        if digest == keys.digest(b"old", "hg-2"):
            return TenantId("bolt")
        raise KeyUnverified("the database is unreachable")


def test_unreachable_database_does_not_hide_keys_hashed_with_a_later_secret() -> None:
    ring = KeyRing(
        {b"new": SecretUse(), b"old": SecretUse()},
        {digest(b"old", "hg-1"): TenantId("acme")},
        None,
        StaleDirectory(),
    )

    assert [ring.tenant(b"Bearer hg-1"), ring.tenant(b"Bearer hg-2")] == ["acme", "bolt"]
    with pytest.raises(KeyUnverified, match="the database is unreachable"):
        ring.tenant(b"Bearer hg-3")
