"""Whose request is it?"""

from dataclasses import dataclass

from headgate.model.units import ClassName, ModelName, TenantId


@dataclass(frozen=True, slots=True)
class Tenant:
    """An account. Empty tuples mean no restriction."""

    id: TenantId
    classes: tuple[ClassName, ...] = ()
    models: tuple[ModelName, ...] = ()
