"""Turns the teams and keys of a LiteLLM proxy into tenants.

LiteLLM stores SHA-256 hashes of keys, which Headgate cannot use. A key whose text is known keeps working: the result
contains its keyed hash. All other keys have to be replaced.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from headgate.config.convert.draft import ANONYMOUS_TENANT, Draft, Setting, unused_name
from headgate.config.convert.source import SourceFile, SourceSection, YamlSource
from headgate.config.references import RESERVED_NAMES
from headgate.wire.keys import digest, format_digest

_DAY: Final = frozenset({"1d", "24h"})
_MONTH: Final = frozenset({"1mo", "28d", "30d", "31d", "720h"})
_ALL_MODELS: Final = frozenset({"all-proxy-models", "all-team-models", "*"})
# Facts about an account, which are not settings.
_FACTS: Final = (
    *("spend", "budget_reset_at", "created_at", "updated_at", "created_by", "updated_by", "last_active", "members"),
    *("members_with_roles", "model_spend", "model_max_budget_spend", "total_count", "current_page", "total_pages"),
    *("organization_id", "user_id", "token_id", "soft_budget_cooldown", "team_memberships", "litellm_budget_table"),
)
_USD_MAX: Final = Decimal(10**9)


@dataclass(slots=True)
class AccountReader:
    draft: Draft
    key_secret: bytes | None
    _file: SourceFile = field(init=False)
    _digests: set[str] = field(default_factory=set[str])
    _teams: dict[str, str] = field(default_factory=dict[str, str])
    """Tenant of each team ID."""

    def __post_init__(self) -> None:
        self._file = self.draft.file

    def read(self, source: YamlSource) -> None:
        """Reads responses of /team/list, /team/info, /key/list and /key/generate. The models must have been read."""
        self._file = source.file
        teams: list[SourceSection] = []
        keys: list[SourceSection] = []
        for each in source.items():
            teams += each.sections("teams")
            each.skip(*_FACTS)
            if "team_info" in each:
                each.take("team_id")
                teams.append(each.section("team_info"))
            if "token" in each or "key" in each:
                keys.append(each)
            elif "team_id" in each:
                teams.append(each)
            if not all(isinstance(key, dict) for key in each.list_of("keys")):
                raise each.error("keys", "must be complete objects; export /key/list with return_full_object=true")
            keys += each.sections("keys")
        if not teams and not keys:
            raise source.file.error(None, "", "has no teams or keys; use the response of /team/list or /key/list")
        self.draft.key_reason = self.draft.key_reason or "the source has teams or keys"
        for team in teams:
            self._team(team)
        for number, key in enumerate(keys, 1):
            self._key(key, number)

    def add_tenant_with_key(self, name: str, key: str | None, place: tuple[int | None, str]) -> None:
        """Adds a tenant whose key works with Headgate as well, if the key and the secret are known."""
        path = ("tenants", name)
        if self.draft.get(path) is None:
            self.draft.put(path, {})
        if key is None or self.key_secret is None:
            missing = "the text of the key" if key is None else "HEADGATE_KEY_SECRET"
            remedy = f"create a new one with `headgate keys new --tenant {name} --write`"
            if key is not None:
                remedy = "set it to the output of `headgate keys secret` and convert again, or " + remedy
            self._file.drop(*place, f"the hash of the key cannot be computed without {missing}; {remedy}")
            return
        hashed = format_digest(digest(self.key_secret, key))
        if hashed in self._digests:
            self._file.drop(*place, "the key belongs to more than one account; the first one keeps it")
            return
        self._digests.add(hashed)
        self.draft.put((*path, "keys"), [hashed], "The hash of the existing key, so that clients can keep it.")
        self.draft.put(("key_secret",), "${HEADGATE_KEY_SECRET}")
        self.draft.variables["HEADGATE_KEY_SECRET"] = "secret used to hash keys; the same as during the conversion"

    def read_budget(self, library: SourceSection) -> None:
        """Reads the budget of the whole proxy."""
        if "max_budget" in library and self.draft.key_reason:
            library.drop(
                "max_budget", "budget_duration", message="budgets belong to tenants and classes; set them there"
            )
        elif "max_budget" in library:
            tenant: dict[str, Setting] = {}
            self._budget(library, tenant)
            self.draft.put(("tenants", ANONYMOUS_TENANT), tenant)

    def _team(self, team: SourceSection) -> None:
        team_id = team.text("team_id") or ""
        name = unused_name(team.text("team_alias") or team_id, self._names(), RESERVED_NAMES["tenants"])
        tenant = self._tenant(team)
        team.skip(*_FACTS)
        team.take("keys")
        if tenant is not None:
            self._teams[team_id] = name
            self.draft.put(("tenants", name), tenant, f"From team {team.setting()} (line {team.line()}).")

    def _key(self, key: SourceSection, number: int) -> None:
        place = key.line(), key.setting() or "key"
        key.take("token")
        text = key.text("key")
        label = key.text("key_alias") or key.text("key_name") or f"key-{number}"
        key.take("key_name")
        team_id = key.text("team_id")
        team = None if team_id is None else self._teams.get(team_id)
        tenant = self._tenant(key)
        key.skip(*_FACTS)
        if tenant is None:
            return
        if team_id is not None and team is None:
            key.change("team_id", "its team is not carried over, so the team's limits do not apply to the key")
        prefix = "" if team is None else f"{team}/"
        taken = {each.removeprefix(prefix) for each in self._names()}
        name = prefix + unused_name(label, taken, RESERVED_NAMES["tenants"])
        self.draft.put(("tenants", name), tenant)
        self.add_tenant_with_key(name, text, place)

    def _tenant(self, account: SourceSection) -> dict[str, Setting] | None:
        """Limits, budgets and models of a team or key; None if it may not send requests."""
        place = account.line(), account.setting() or "account"
        if account.flag("blocked"):
            account.skip()
            self._file.drop(*place, "the account is blocked")
            return None
        tenant: dict[str, Setting] = {}
        limits: dict[str, Setting] = {}
        for source, setting in (
            ("rpm_limit", "requests_per_minute"),
            ("tpm_limit", "tokens_per_minute"),
            ("max_parallel_requests", "concurrency"),
        ):
            if value := account.whole(source):
                limits[setting] = str(value)
            elif value == 0:
                account.change(source, f"{setting} has a minimum of 1")
                limits[setting] = "1"
        if limits:
            tenant["limits"] = limits
        self._budget(account, tenant)
        account.drop("expires", message="keys in the file do not expire; use the database for keys that do")
        wanted = account.texts("models")
        if wanted and _ALL_MODELS.isdisjoint(wanted):
            known = [each for each in dict.fromkeys(wanted) if each in self.draft.models()]
            if not known:
                account.skip()
                self._file.drop(*place, "none of its models is carried over")
                return None
            if len(known) < len(set(wanted)):
                account.change("models", "models that are not carried over are removed")
            tenant["models"] = list(known)
        return tenant

    def _budget(self, account: SourceSection, tenant: dict[str, Setting]) -> None:
        amount, duration = account.number("max_budget"), account.text("budget_duration")
        if amount is None:
            return
        period = "day" if duration in _DAY else "month" if duration in _MONTH else None
        if period is None:
            self._drop_budget(account, "budgets are per calendar day or month")
        elif not Decimal("1e-9") <= amount <= _USD_MAX:
            self._drop_budget(account, "a budget must be more than 0 and at most one billion dollars")
        else:
            tenant["budgets"] = {period: f"{amount.quantize(Decimal('1e-9')).normalize():f}"}
            account.change(
                "max_budget", f"the budget is per calendar {period} (UTC); it needs prices and, to persist, a ledger"
            )

    def _drop_budget(self, account: SourceSection, reason: str) -> None:
        self._file.drop(account.line("max_budget"), account.setting("max_budget"), reason)

    def _names(self) -> dict[str, Setting]:
        tenants = self.draft.get(("tenants",))
        return tenants if isinstance(tenants, dict) else {}
