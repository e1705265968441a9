"""Simulated engines and their sizes.

An engine takes its values from its profile, except for sizes set in the file. Sizes with which a real engine would fail
to start are reported as problems. The scheduler's view of a pool is derived from its engines, unless the file overrides
it, for example to simulate a wrong configuration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from headgate.config.batching import batch_rules
from headgate.config.engine_profiles import ProfileFinder
from headgate.config.fleets import cold_start_ns, held_requests_max, scaling_rules
from headgate.config.money import prices
from headgate.config.pool_schema import HOSTED_ENGINE
from headgate.config.pools import check_ranges
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.references import NAME_RULE, is_name
from headgate.config.scenarios.schema import (
    ENGINES_MAX,
    SIMULATED_ENGINE,
    EnginesSection,
    ScenarioFile,
    SimulatedPoolSection,
)
from headgate.config.schema_reader import suggestion
from headgate.config.speeds import DEFAULT_SPEED, engine_speed
from headgate.model.engine_profile import EngineProfile
from headgate.model.money import Price
from headgate.model.policy import Pool
from headgate.model.units import Duration, EndpointId, Instant, PoolName
from headgate.simulation.options import EngineSpec, ScaledPool

ENGINE_TYPES = (SIMULATED_ENGINE, HOSTED_ENGINE)

TRACE_BLOCK_TOKENS = 512
"""Number of tokens per prefix block in a trace."""


def engine_settings(file: ScenarioFile, profiles: ProfileFinder, report: ConfigReport) -> tuple[EngineSpec, ...]:
    if not file.pools:
        report.add_problem(("pools",), "has no pools; define at least one, with its engines")
    reading = _EngineReader(profiles, report)
    return tuple(each for name, section in file.pools.items() for each in reading.pool(name, section))


def pool_scaling(file: ScenarioFile, report: ConfigReport) -> dict[PoolName, ScaledPool]:
    """The pools that are autoscaled."""
    found: dict[PoolName, ScaledPool] = {}
    for name, section in file.pools.items():
        rules = scaling_rules(name, section.scaling, file.classes or {}, report)
        if rules is None or section.scaling is None:
            continue
        place = ("pools", name, "scaling")
        if section.scaling.calendar:
            problem = "has no effect in a scenario, which has no calendar; remove it"
            report.add_problem((*place, "calendar"), problem)
        if rules.endpoints_max > ENGINES_MAX:
            report.add_problem((*place, "endpoints_max"), f"is more than {ENGINES_MAX}; lower it")
        listed = sum(each.count for each in section.engines)
        if not rules.endpoints_min <= listed <= rules.endpoints_max:
            bounds = f"is not between scaling.endpoints_min {rules.endpoints_min} and endpoints_max"
            problem = f"{bounds} {rules.endpoints_max}: {listed} engines; list those that run at the start"
            report.add_problem(("pools", name, "engines"), problem, contents_valid=True)
        actual = section.engines[-1].cold_start if section.engines else 0
        found[PoolName(name)] = ScaledPool(rules, Duration(actual or section.scaling.cold_start))
    return found


def policy_pools(
    file: ScenarioFile, engines: Sequence[EngineSpec], profiles: ProfileFinder, report: ConfigReport
) -> tuple[Pool, ...]:
    """The pools as part of the scheduler's policy."""
    return tuple(
        _policy_pool(name, section, [each for each in engines if each.pool == name], profiles, report)
        for name, section in file.pools.items()
    )


def _policy_pool(
    name: str,
    section: SimulatedPoolSection,
    engines: Sequence[EngineSpec],
    profiles: ProfileFinder,
    report: ConfigReport,
) -> Pool:
    """Policy for a pool. If its engines differ, the policy uses the first engine's speed and the smallest engine's
    sizes.
    """
    place = ("pools", name)
    check_ranges(section, place, report)
    _check_engine_type(section, place, report)
    first = engines[0].profile if engines else DEFAULT_SPEED
    sizes = [each.profile for each in engines]
    chunk_tokens = min((each.chunk_tokens for each in sizes), default=DEFAULT_SPEED.chunk_tokens)
    speed = engine_speed(section.speed, profiles, (*place, "speed"), default=first)
    if section.speed.profile is None and section.speed.chunk_tokens is None:
        speed = replace(speed, chunk_tokens=chunk_tokens)
    return Pool(
        PoolName(name),
        Duration(section.warm_up),
        speed=speed,
        kv_tokens=section.kv_tokens or min((each.kv_blocks * each.block_tokens for each in sizes), default=None),
        prompt_tokens_min=section.prompt_tokens_min,
        prompt_tokens_max=section.prompt_tokens_max,
        output_tokens_min=section.output_tokens_min,
        output_tokens_max=section.output_tokens_max,
        hold_max=held_requests_max(section.scaling),
        cold_start_ns=cold_start_ns(section.scaling),
        prices=_prices(section, place, report),
        scales=section.scaling is not None,
        hosted=section.engine == HOSTED_ENGINE,
    )


def _check_engine_type(section: SimulatedPoolSection, place: SettingPath, report: ConfigReport) -> None:
    if section.engine not in ENGINE_TYPES:
        hint = suggestion(section.engine, ENGINE_TYPES, otherwise=f"; use {' or '.join(ENGINE_TYPES)}")
        report.add_problem((*place, "engine"), f'engine "{section.engine}" does not exist{hint}')


def _prices(section: SimulatedPoolSection, place: SettingPath, report: ConfigReport) -> tuple[Price, ...]:
    """The pool's price. A scenario has no calendar, so a price cannot start on a day."""
    for number, each in enumerate(section.prices):
        if each.since is not None:
            problem = "has no effect in a scenario, which has no calendar; remove it"
            report.add_problem((*place, "prices", number, "from"), problem)
    return prices(section.prices, place, report)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineSize:
    """Sizes of an engine, which may be invalid."""

    chunk_tokens: int
    sequences_max: int
    kv_blocks: int
    block_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class _EngineReader:
    profiles: ProfileFinder
    report: ConfigReport

    def pool(self, name: str, section: SimulatedPoolSection) -> list[EngineSpec]:
        place = ("pools", name)
        if not is_name(name):
            self.report.add_problem(place, NAME_RULE, contents_valid=True)
        if not section.engines:
            self.report.add_problem((*place, "engines"), "has no engines; list at least one by its profile")
        found: list[EngineSpec] = []
        for number, group in enumerate(section.engines):
            profile = self._profile(group, (*place, "engines", number))
            in_flight_max = self._in_flight_max(section, group, place)
            found += [
                EngineSpec(
                    id=EndpointId(f"{name}/{len(found) + extra}"),
                    pool=PoolName(name),
                    profile=profile,
                    in_flight_max=in_flight_max,
                    starts_at=Instant(group.starts_at),
                    cold_start_ns=Duration(group.cold_start),
                    call_ns=Duration(group.call_time),
                )
                for extra in range(group.count)
            ]
        slots = max((each.in_flight_max for each in found), default=0)
        rules = batch_rules(name, section.batching, slots, self.report)
        batching = [replace(each, batching=rules) for each in found]
        return [*batching, *_standby_engines(name, section, batching)]

    def _in_flight_max(self, section: SimulatedPoolSection, group: EnginesSection, place: SettingPath) -> int:
        limit = group.in_flight_max or section.in_flight_max
        if limit is None:
            problem = "missing; set the number of concurrent requests per engine, such as 64"
            self.report.add_problem((*place, "in_flight_max"), problem)
        return limit or 1

    def _profile(self, group: EnginesSection, place: SettingPath) -> EngineProfile:
        """Returns the group's profile with the sizes set in the file. If there is a problem, it is reported, and the
        result is a profile without them.
        """
        profile = self.profiles.find(group.profile, (*place, "profile"))
        if profile is None:
            return next(iter(self.profiles.built_in.values()))
        block_tokens = group.block_tokens or profile.block_tokens
        size = _EngineSize(
            chunk_tokens=group.chunk_tokens or profile.chunk_tokens,
            sequences_max=group.sequences_max or profile.sequences_max,
            kv_blocks=(group.kv_tokens or profile.kv_blocks * profile.block_tokens) // block_tokens,
            block_tokens=block_tokens,
            context_tokens=group.context_tokens or profile.context_tokens,
        )
        if not self._is_valid(size, place):
            return profile
        ahead = profile.async_scheduling if group.async_scheduling is None else group.async_scheduling
        return replace(profile, **asdict(size), async_scheduling=ahead)

    def _is_valid(self, size: _EngineSize, place: SettingPath) -> bool:
        problems = dict(_size_problems(size))
        for setting, problem in problems.items():
            self.report.add_problem((*place, setting), problem)
        return not problems


def _standby_engines(name: str, section: SimulatedPoolSection, listed: Sequence[EngineSpec]) -> Iterator[EngineSpec]:
    """Engines like the last one in the list, which run only if the autoscaler starts them."""
    if section.scaling is not None and listed:
        for number in range(len(listed), min(section.scaling.endpoints_max, ENGINES_MAX)):
            yield replace(listed[-1], id=EndpointId(f"{name}/{number}"), starts_at=Instant(0), standby=True)


def _size_problems(size: _EngineSize) -> Iterator[tuple[str, str]]:
    """Yields the settings with which the engine would not start, and why."""
    if size.chunk_tokens < size.sequences_max:
        problem = (
            f"is {size.chunk_tokens}, less than sequences_max {size.sequences_max}, but every running sequence "
            "needs a token in each step; raise it, or lower sequences_max"
        )
        yield "chunk_tokens", problem
    if TRACE_BLOCK_TOKENS % size.block_tokens:
        problem = f"must divide {TRACE_BLOCK_TOKENS}, the size of prefix blocks in traces; use 16 or 32, for example"
        yield "block_tokens", problem
    held = size.kv_blocks * size.block_tokens
    if held < size.context_tokens:
        problem = (
            f"is {held} tokens, less than context_tokens {size.context_tokens}; "
            f"raise it, or lower context_tokens to {held}"
        )
        yield "kv_tokens", problem
