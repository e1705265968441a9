"""Usage report of a tenant (`GET /v1/usage`) and the tenants' cache salts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from headgate.model.limits import Limits, LimitsLeft, RateLeft
from headgate.model.money import NANO_USD_PER_USD, BudgetStatus
from headgate.model.policy import ServiceClass
from headgate.model.tenant import Tenant, levels_of
from headgate.model.units import SECOND, Instant, ModelName, TenantId
from headgate.wire.cache_salts import tenant_salt

_SALTS_MAX: Final = 100_000


class TenantSalts(Mapping[TenantId, str]):
    """Each tenant's salt, computed on first use because only a few of many tenants may be active."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._cache: dict[TenantId, str] = {}

    def __getitem__(self, tenant: TenantId) -> str:
        if (salt := self._cache.get(tenant)) is None:
            if len(self._cache) >= _SALTS_MAX:
                self._cache.clear()
            salt = self._cache[tenant] = tenant_salt(self._secret, tenant)
        return salt

    def __iter__(self) -> Iterator[TenantId]:
        return iter(self._cache)

    def __len__(self) -> int:
        return len(self._cache)


def usage_report(
    find_tenant: Callable[[TenantId], Tenant | None],
    models: Callable[[TenantId], tuple[ModelName, ...]],
    classes: tuple[ServiceClass, ...],
    left: Callable[[TenantId], LimitsLeft | None],
    tenant_id: TenantId,
    *,
    budgets: Callable[[TenantId], Sequence[Mapping[str, object]]],
) -> Mapping[str, object]:
    """Returns the tenant's classes, models, remaining rates and budgets, and the limits at every level of its path."""
    tenant = find_tenant(tenant_id) or Tenant(tenant_id)
    rates = left(tenant_id)
    return {
        "object": "usage",
        "tenant": tenant_id,
        "plan": tenant.plan,
        "classes": [each.name for each in classes if not tenant.classes or each.name in tenant.classes],
        "models": models(tenant_id),
        "limits": [
            {"tenant": level.id, **_limits(level.limits)}
            for name in levels_of(tenant_id)
            if (level := find_tenant(name)) is not None and level.limits != Limits()
        ],
        "requests": None if rates is None else _rate(rates.requests),
        "tokens": None if rates is None else _rate(rates.tokens),
        "budgets": budgets(tenant_id),
    }


def budget_rows(
    left: Sequence[BudgetStatus], now: Instant, *, from_ledger: bool = False, as_of: datetime | None = None
) -> list[Mapping[str, object]]:
    """Returns the state of budgets as JSON rows.

    Amounts from the ledger have a timestamp, because they exclude running requests and unwritten rows.
    """
    return [
        {
            "scope": each.scope,
            "period": each.period.value,
            "kind": "hard" if each.hard else "soft",
            "limit_usd": each.limit / NANO_USD_PER_USD,
            "spent_usd": each.spent / NANO_USD_PER_USD,
            "reserved_usd": each.reserved / NANO_USD_PER_USD,
            "remaining_usd": max(0, each.limit - each.spent - each.reserved) / NANO_USD_PER_USD,
            "resets_at": None if each.reset_ns is None else _moment(Instant(now + each.reset_ns)),
            **({"as_of": None if as_of is None else _text(as_of)} if from_ledger else {}),
        }
        for each in left
    ]


def _moment(at: Instant) -> str:
    return _text(datetime.fromtimestamp(round(at / SECOND), UTC))


def _text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _limits(limits: Limits) -> dict[str, int]:
    named = ("requests_per_minute", "tokens_per_minute", "concurrency")
    return {name: value for name in named if (value := getattr(limits, name)) is not None}


def _rate(rate: RateLeft | None) -> dict[str, object] | None:
    if rate is None:
        return None
    return {"limit": rate.limit, "remaining": rate.remaining, "reset_s": rate.reset_ns / SECOND}
