"""The import contracts and banned imports are enforced."""

import pytest

from tests.house.small_tree import SmallTree, Verdict, a_small_tree

pytestmark = pytest.mark.process

PURE = "The core and the model touch nothing outside"
ROOMS = "Imports point one way, and adapters do not know each other"
WIRE = "The wire is bytes in, bytes out"


def test_small_tree_passes_every_contract(tree: SmallTree) -> None:
    imports, style = tree.lint_imports(), tree.ruff()

    assert imports.passed, imports.said
    assert style.passed, style.said
    assert "Contracts: 3 kept, 0 broken" in imports.said


FORBIDDEN = [
    ("core", "import time", PURE),
    ("core", "import asyncio", PURE),
    ("core", "import aiohttp", PURE),
    ("core", "from os import urandom", PURE),
    ("core/queues", "import random", PURE),
    ("model", "import logging", PURE),
    ("model", "from datetime import datetime", PURE),
    ("wire", "import asyncio", WIRE),
    ("wire", "from aiohttp import web", WIRE),
    ("model", "from headgate.core import scheduler", ROOMS),
    ("core", "from headgate import ports", ROOMS),
    ("core", "from headgate.wire import sse", ROOMS),
    ("ports", "from headgate.hosts import loop", ROOMS),
    ("wire", "from headgate.edge import app", ROOMS),
    ("edge", "from headgate.hosts import loop", ROOMS),
    ("engines", "from headgate.edge import app", ROOMS),
    ("edge", "from headgate import compose", ROOMS),
    ("edge", "from headgate.simulation import engine", ROOMS),
    ("simulation", "from headgate.planning import plan", ROOMS),
    ("fleets", "from headgate.edge import app", ROOMS),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """Lint result for a tree with every forbidden import, each in its own file."""
    tree = a_small_tree(tmp_path_factory.mktemp("broken"))
    for number, (room, line, _) in enumerate(FORBIDDEN):
        tree.write(f"src/headgate/{room}/__init__.py")
        tree.write(f"src/headgate/{room}/violation_{number}.py", line)
    return tree.lint_imports()


@pytest.mark.parametrize(
    ("number", "contract"),
    [pytest.param(number, case[2], id=f"{case[0]}: {case[1]}") for number, case in enumerate(FORBIDDEN)],
)
def test_forbidden_import_breaks_its_contract(broken: Verdict, number: int, contract: str) -> None:
    broken_contracts = broken.said.partition("Broken contracts")[2]
    others = [each for each in (PURE, ROOMS, WIRE) if each != contract]
    about_it = min((broken_contracts.partition(contract)[2].partition(other)[0] for other in others), key=len)

    assert not broken.passed
    assert f"{contract} BROKEN" in broken.said
    assert f".violation_{number} ->" in about_it, broken.said


def test_planning_and_loadtest_may_use_the_simulation(tree: SmallTree) -> None:
    for room in ("planning", "loadtest"):
        tree.write(f"src/headgate/{room}/user.py", "from headgate.simulation import engine")
        tree.write(f"src/headgate/{room}/user_of_the_room.py", "import headgate.simulation")

    verdict = tree.lint_imports()

    assert verdict.passed, verdict.said


def test_package_outside_the_contracts_is_rejected(tree: SmallTree) -> None:
    tree.write("src/headgate/attic/__init__.py")

    verdict = tree.lint_imports()

    assert not verdict.passed
    assert "attic" in verdict.said


PURE_ROOMS = ("core", "core/queues", "model")
BANNED = [
    ("import time", "`time` is banned: The core has no clock"),
    ("from datetime import datetime", "`datetime` is banned: The core has no clock"),
    ("import random", "`random` is banned: The core is deterministic"),
    ("from os import urandom", "`os` is banned: The core does no I/O"),
    ("import asyncio", "`asyncio` is banned: The core does no I/O"),
    ("import logging", "`logging` is banned: The core does not log"),
    ('print("x")', "T201"),
]


@pytest.fixture(scope="module")
def banned(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """Lint result for a tree with every banned line, each in its own file."""
    tree = a_small_tree(tmp_path_factory.mktemp("banned"))
    for room in PURE_ROOMS:
        tree.write(f"src/headgate/{room}/__init__.py")
        for number, (line, _) in enumerate(BANNED):
            tree.write(f"src/headgate/{room}/violation_{number}.py", line)
    return tree.ruff()


@pytest.mark.parametrize("room", PURE_ROOMS)
@pytest.mark.parametrize(
    ("number", "reason"), [pytest.param(number, case[1], id=case[0]) for number, case in enumerate(BANNED)]
)
def test_ruff_explains_bans_in_pure_packages(banned: Verdict, room: str, number: int, reason: str) -> None:
    about_it = [line for line in banned.said.splitlines() if f"{room}/violation_{number}.py:" in line]

    assert not banned.passed
    assert any(reason in line for line in about_it), banned.said


def test_ruff_allows_a_clock_in_adapters(tree: SmallTree) -> None:
    tree.write("src/headgate/hosts/clock.py", "import time", "", "NOW_NS = time.time_ns")

    verdict = tree.ruff()

    assert verdict.passed, verdict.said
