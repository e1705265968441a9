"""How do tenants and keys of the database become those of a gateway?

A copy of the database's directory is followed (`ledger/directory/copy.py`). What it holds is made into tenants and
orders of the policy, beside those of the file; where both have a tenant of the same id, the file's counts and the
database's is left out, with its keys. The door looks keys up here, in memory, and no request ever waits for the
database.

Keys count from the moment they are known: one that is revoked ends at once. A tenant counts when the policy that names
it is in force, which in a cell is when all members have read it; until then its keys are not known *yet*, which is
another answer than that they are wrong.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headgate.control.operator_orders import operator_order
from headgate.edge.auth import Unverified
from headgate.ledger.database import FAILURES, Database, close
from headgate.ledger.directory.copy import Copy, Picture
from headgate.ledger.directory.directory import DEPTH_MAX, PostgresDirectory
from headgate.ledger.migrate import Migration, migrate, migrations
from headgate.ledger.options import DatabaseOptions
from headgate.model.limits import Limits
from headgate.model.money import Budget
from headgate.model.policy import Policy
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import SECOND, ClassName, ModelName, TenantId
from headgate.ports.directory import BudgetRow, TenantRow
from headgate.telemetry.directory import DirectoryFigures

_SHADOWED_TOLD_MAX: Final = 20
_TAKEN_OVER_S_MAX: Final = 2.0
_ABOVE_MAX: Final = 64
"""Of more than these it is cheaper to reckon all anew than to look who is below them."""


class LiveDirectory:
    """Of one process. Made and run inside an event loop."""

    def __init__(
        self, settings: DatabaseOptions, on_change: Callable[[], None], now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._shown = settings.url_shown
        self._database = Database(settings.url)
        self._on_change = on_change
        self._now_ns = now_ns
        self._copy = Copy(self._database, self._changed, poll_s=settings.poll_ns / SECOND)
        self.writer = PostgresDirectory(self._database, lambda name: TenantId(name) in self._file)
        self._picture = Picture()
        self._tenants: dict[TenantId, Tenant] = {}
        """What the picture comes to."""
        self._in_force: Mapping[TenantId, Tenant] = {}
        """Of these the policy in force has all that the file does not name itself."""
        self._file: frozenset[TenantId] = frozenset()
        self._running: asyncio.Task[None] | None = None

    # Its life

    def start(self) -> asyncio.Task[None]:
        self._running = asyncio.create_task(self._copy.run(), name="follow the directory")
        return self._running

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._database.stop()

    async def looked(self, limit_s: float) -> None:
        """Waits until the database was asked once, but no longer than that."""
        await self._copy.looked(limit_s)

    async def taken_over(self) -> None:
        """Waits a little until what was just written is known here too."""
        self._copy.ring()
        await self._copy.looked(_TAKEN_OVER_S_MAX)

    # What it comes to

    @property
    def name(self) -> str:
        """Names the rows: the same in every process that has read the same."""
        return self._picture.name if self._copy.loaded else ""

    def take(self, policy: Policy) -> Policy:
        """The policy of the file with what is known here, which is in force from here on."""
        self._in_force = dict(self._tenants)
        self._file = frozenset(each.id for each in policy.tenants)
        return self.preview(policy)

    def preview(self, policy: Policy) -> Policy:
        """What would be in force."""
        others = dict(self._tenants)
        for tenant in policy.tenants:
            others.pop(tenant.id, None)
        orders = tuple(order for row in self._picture.orders.values() if (order := operator_order(row)) is not None)
        return replace(
            policy,
            tenants=(*policy.tenants, *others.values()),
            orders=(*policy.orders, *orders),
            tenants_whole=self._copy.loaded,
        )

    def tenant(self, tenant_id: TenantId) -> Tenant | None:
        return self._in_force.get(tenant_id)

    def _changed(self, picture: Picture) -> None:
        self._tenants = _tenants(picture, self._tenants)
        self._picture = picture
        # By now it counts as loaded, though the copy says so only when it has looked.
        self._copy.loaded = True
        self._on_change()

    # For the door

    def find(self, known: bytes) -> TenantId | None:
        row = self._picture.keys.get(known)
        if row is not None and (row.expires_at is None or row.expires_at > self._now_ns()):
            tenant_id = TenantId(row.tenant)
            if tenant_id in self._file:
                return None
            if tenant_id in self._in_force:
                return tenant_id
            raise Unverified("this key is so new that not every gateway knows it yet; try again")
        if row is None and not self._copy.fresh:
            raise Unverified(f"whether this key is known cannot be checked: {self._away()}; try again")
        return None

    def _away(self) -> str:
        return f"the database of keys is away ({self._copy.problem or 'it has not answered for a while'})"

    # For those who look

    def ready(self, *, others: bool) -> tuple[bool, str]:
        """Whether requests can be taken; `others` says whether anybody may call who is not in the database."""
        if self._copy.loaded:
            return True, "ready"
        if self._copy.mismatch is not None:
            return False, self._copy.mismatch
        if others:
            return True, f"ready, with the keys of the file alone: {self._away()}"
        return False, f"no key is known: {self._away()}; start the database, or put a key into the file"

    def figures(self) -> DirectoryFigures:
        copy = self._copy
        return DirectoryFigures(
            copy.fresh, copy.age_s, len(self._picture.tenants), len(self._picture.keys), copy.reconnects
        )

    def status(self) -> Mapping[str, object]:
        copy, shadowed = self._copy, sorted(self._file.intersection(self._tenants))
        return {
            "url": self._shown,
            "fresh": copy.fresh,
            "age_s": None if copy.age_s == float("inf") else round(copy.age_s, 1),
            "version": self._picture.version,
            "tenants": len(self._picture.tenants),
            "keys": len(self._picture.keys),
            "budgets": sum(len(each) for each in self._picture.budgets.values()),
            "orders": sum(order.expires_at > self._now_ns() for order in self._picture.orders.values()),
            "problem": copy.problem,
            "reconnects": copy.reconnects,
            "shadowed_by_file": shadowed[:_SHADOWED_TOLD_MAX],
        }


def _tenants(picture: Picture, known: Mapping[TenantId, Tenant]) -> dict[TenantId, Tenant]:
    """What the rows come to. Only those are reckoned anew that changed, or are below one that did."""
    rows, changed = picture.tenants, picture.changed
    tenants = {} if changed is None else dict(known)
    for name in rows if changed is None else _concerned(changed, rows):
        if name in rows:
            tenants[TenantId(name)] = _tenant(name, rows, picture.budgets.get(name, ()))
        else:
            tenants.pop(TenantId(name), None)
    return tenants


def _concerned(changed: Sequence[str], rows: Mapping[str, TenantRow]) -> Iterable[str]:
    """Those, and all that are below one of them; each once."""
    above = tuple(f"{name}/" for name in changed if name.count("/") < DEPTH_MAX - 1)
    if not above:
        # Nothing is below a key, and keys are what changes most.
        return changed
    below = rows if len(above) > _ABOVE_MAX else [name for name in rows if name.startswith(above)]
    return dict.fromkeys((*changed, *below))


def _tenant(name: str, rows: Mapping[str, TenantRow], budgets: Sequence[BudgetRow]) -> Tenant:
    """What is left out is as the level above has it; what several levels name is allowed where all of them do."""
    terms = rows[name].terms
    classes, models, plan = terms.classes, terms.models, terms.plan
    above = name.rpartition("/")[0]
    while above:
        if (whole := rows.get(above)) is not None:
            classes, models = _both(classes, whole.terms.classes), _both(models, whole.terms.models)
            plan = plan or whole.terms.plan
        above = above.rpartition("/")[0]
    return Tenant(
        TenantId(name),
        classes=tuple(ClassName(each) for each in classes),
        models=tuple(ModelName(each) for each in models),
        weight=terms.weight or 100,
        plan=Plan(plan or Plan.STANDARD),
        limits=Limits(terms.requests_per_minute, terms.tokens_per_minute, terms.concurrency),
        budgets=tuple(Budget(each.period, each.limit, each.hard) for each in budgets),
    )


def _both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """What both allow. Nothing named allows everything, so where nothing is left, what no one is called stands."""
    if not one or not other:
        return one or other
    return tuple(each for each in one if each in other) or ("",)


# For the command line


async def migrate_database(url: str, on_step: Callable[[Migration], None]) -> int:
    """How many steps were applied. Raises `OSError` with what is wrong."""
    database = Database(url)
    try:
        link = await database.connect()
        try:
            return await migrate(link, migrations(), on_step)
        finally:
            await close(link)
    except FAILURES as error:
        raise OSError(0, database.problem(error)) from error
