"""Do the contracts between the rooms bite?"""

import pytest

from tests.house.small_tree import SmallTree

PURE = "The core and the model touch nothing outside"
ROOMS = "Imports point one way, and adapters do not know each other"
WIRE = "The wire is bytes in, bytes out"


def test_the_small_tree_keeps_every_contract(tree: SmallTree) -> None:
    imports, style = tree.lint_imports(), tree.ruff()

    assert imports.passed, imports.said
    assert style.passed, style.said
    assert "Contracts: 3 kept, 0 broken" in imports.said


@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
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
    ],
)
def test_a_forbidden_import_breaks_its_contract(tree: SmallTree, room: str, line: str, contract: str) -> None:
    tree.write(f"src/headgate/{room}/__init__.py")
    tree.write(f"src/headgate/{room}/violation.py", line)

    verdict = tree.lint_imports()

    assert not verdict.passed
    assert f"{contract} BROKEN" in verdict.said
    assert "violation" in verdict.said


@pytest.mark.parametrize("room", ["planning", "loadtest"])
def test_planning_and_loadtest_may_use_the_simulation(tree: SmallTree, room: str) -> None:
    tree.write(f"src/headgate/{room}/user.py", "from headgate.simulation import engine")
    tree.write(f"src/headgate/{room}/user_of_the_room.py", "import headgate.simulation")

    verdict = tree.lint_imports()

    assert verdict.passed, verdict.said


def test_a_room_without_a_place_is_refused(tree: SmallTree) -> None:
    tree.write("src/headgate/attic/__init__.py")

    verdict = tree.lint_imports()

    assert not verdict.passed
    assert "attic" in verdict.said


@pytest.mark.parametrize("room", ["core", "core/queues", "model"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import time", "`time` is banned: The core is told the time"),
        ("from datetime import datetime", "`datetime` is banned: The core is told the time"),
        ("import random", "`random` is banned: The core is deterministic"),
        ("from os import urandom", "`os` is banned: The core does no I/O"),
        ("import asyncio", "`asyncio` is banned: The core does no I/O"),
        ("import logging", "`logging` is banned: The core does not log"),
        ('print("x")', "T201"),
    ],
)
def test_ruff_says_in_a_pure_room_what_to_do_instead(tree: SmallTree, room: str, line: str, reason: str) -> None:
    tree.write(f"src/headgate/{room}/__init__.py")
    tree.write(f"src/headgate/{room}/violation.py", line)

    verdict = tree.ruff()

    assert not verdict.passed
    assert reason in verdict.said


def test_ruff_lets_an_adapter_have_a_clock(tree: SmallTree) -> None:
    tree.write("src/headgate/hosts/clock.py", "import time", "", "NOW_NS = time.time_ns")

    verdict = tree.ruff()

    assert verdict.passed, verdict.said
