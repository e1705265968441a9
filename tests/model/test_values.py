"""Are the words of the domain values: frozen, equal by content, without a dictionary each?"""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from inspect import getmembers, isclass

import pytest

from headgate.core import commands, events, summary
from headgate.model import caps, endpoint, outcome, policy, tenant, ticket, usage
from headgate.model.units import TenantId

MODULES = (commands, events, summary, caps, endpoint, outcome, policy, tenant, ticket, usage)
VALUES = sorted(
    {
        found
        for module in MODULES
        for _, found in getmembers(module, isclass)
        if is_dataclass(found) and found.__module__ == module.__name__
    },
    key=lambda each: each.__qualname__,
)


@pytest.mark.parametrize("value", VALUES)
def test_every_value_is_frozen_and_slotted(value: type) -> None:
    assert value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert set(value.__slots__) == {field.name for field in fields(value)}  # type: ignore[attr-defined]


def test_a_value_cannot_be_changed() -> None:
    someone = tenant.Tenant(TenantId("acme"))

    with pytest.raises(FrozenInstanceError):
        someone.id = TenantId("bolt")  # type: ignore[misc]
