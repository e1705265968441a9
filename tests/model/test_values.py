"""Domain types are values: frozen, slotted and compared by content."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, is_dataclass
from inspect import getmembers, isclass
from pathlib import Path
from typing import Any

import pytest

from headgate.core import commands, events, summary
from headgate.model import caps, endpoint, limits, outcome, policy, tenant, ticket, usage
from headgate.model.units import TenantId

MODULES = (commands, events, summary, caps, endpoint, limits, outcome, policy, tenant, ticket, usage)
VALUES = sorted(
    {
        found
        for module in MODULES
        for _, found in getmembers(module, isclass)
        if is_dataclass(found) and found.__module__ == module.__name__
    },
    key=lambda each: each.__qualname__,
)


MESSAGES = (commands, events, limits, ticket, usage)


@pytest.mark.parametrize("value", VALUES)
def test_every_value_is_frozen_and_slotted(value: type) -> None:
    made: Any = value.__dataclass_params__  # type: ignore[attr-defined]
    # Messages are frozen only for the type checker, but they are hashed by content too.
    is_message = made.unsafe_hash and value.__module__ in [each.__name__ for each in MESSAGES]
    assert made.frozen or is_message
    assert value.__dictoffset__ == 0, "an object of this class has a dict"


def test_value_is_immutable() -> None:
    someone = tenant.Tenant(TenantId("acme"))

    with pytest.raises(FrozenInstanceError):
        someone.id = TenantId("bolt")  # type: ignore[misc]


@pytest.mark.process
def test_type_checker_rejects_assignment_to_message(tmp_path: Path) -> None:
    (tmp_path / "changes.py").write_text(
        "from headgate.core.events import FirstToken\n"
        "from headgate.model.units import RequestId\n"
        'said = FirstToken(RequestId("a"), 1)\n'
        "said.attempt = 2\n"
    )
    checker = Path(sys.executable).with_name("basedpyright")

    found = subprocess.run(
        [checker, "--pythonpath", sys.executable, "changes.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 1
    assert 'Attribute "attempt" is read-only' in found.stdout
