"""Which engines are simulated, and how large is each?

An engine is as its profile says, but for what the file says of its size. What could not run as a real engine would
refuse to start is told here, with the line. What the scheduler knows of a pool follows from its engines, unless the
file says otherwise: a scheduler that is told wrongly is worth simulating too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.config.pools import check_ranges
from headgate.config.problems import Place, Report
from headgate.config.references import A_NAME, is_name
from headgate.config.scenarios.schema import EnginesSection, ScenarioFile, SimulatedPoolSection
from headgate.config.scenarios.settings import EngineFigures, EngineSettings, EngineSize
from headgate.config.shape import suggestion
from headgate.config.speeds import USUAL, engine_speed
from headgate.model.policy import Pool
from headgate.model.units import Duration, EndpointId, Instant, PoolName

TRACE_BLOCK_TOKENS = 512
"""How many tokens one name of a prefix stands for in a trace."""


def engine_settings(
    file: ScenarioFile, profiles: Mapping[str, EngineFigures], report: Report
) -> tuple[EngineSettings, ...]:
    if not file.pools:
        report.problem(("pools",), "names no pool; name at least one, with its engines")
    reading = _Engines(profiles, report)
    return tuple(each for name, section in file.pools.items() for each in reading.pool(name, section))


def known_pools(
    file: ScenarioFile, engines: Sequence[EngineSettings], profiles: Mapping[str, EngineFigures], report: Report
) -> tuple[Pool, ...]:
    """What the scheduler knows of the pools."""
    return tuple(
        _known(name, section, [each for each in engines if each.pool == name], profiles, report)
        for name, section in file.pools.items()
    )


def _known(
    name: str,
    section: SimulatedPoolSection,
    engines: Sequence[EngineSettings],
    profiles: Mapping[str, EngineFigures],
    report: Report,
) -> Pool:
    """Where the engines of a pool differ: the speed of the first, and room as in the smallest."""
    place = ("pools", name)
    check_ranges(section, place, report)
    first = profiles.get(engines[0].profile, USUAL) if engines else USUAL
    sizes = [each.size for each in engines]
    chunk_tokens = min((each.chunk_tokens for each in sizes), default=USUAL.chunk_tokens)
    speed = engine_speed(section.speed, profiles, (*place, "speed"), report, otherwise=first)
    if section.speed.like is None and section.speed.chunk_tokens is None:
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
    )


@dataclass(frozen=True, slots=True)
class _Engines:
    profiles: Mapping[str, EngineFigures]
    report: Report

    def pool(self, name: str, section: SimulatedPoolSection) -> list[EngineSettings]:
        place = ("pools", name)
        if not is_name(name):
            self.report.problem(place, A_NAME, read=True)
        if not section.engines:
            self.report.problem((*place, "engines"), "names no engine; list at least one by its profile")
        found: list[EngineSettings] = []
        for number, group in enumerate(section.engines):
            size = self._size(group, (*place, "engines", number))
            in_flight_max = self._in_flight_max(section, group, place)
            found += [
                EngineSettings(
                    id=EndpointId(f"{name}/{len(found) + extra}"),
                    pool=PoolName(name),
                    profile=group.profile,
                    size=size,
                    asynchronous=group.asynchronous,
                    in_flight_max=in_flight_max,
                    starts_at=Instant(group.starts_at),
                    cold_start_ns=Duration(group.cold_start),
                )
                for extra in range(group.count)
            ]
        return found

    def _in_flight_max(self, section: SimulatedPoolSection, group: EnginesSection, place: Place) -> int:
        limit = group.in_flight_max or section.in_flight_max
        if limit is None:
            problem = "missing; say how many requests an engine may hold at once, such as 64"
            self.report.problem((*place, "in_flight_max"), problem)
        return limit or 1

    def _size(self, group: EnginesSection, place: Place) -> EngineSize:
        profile = self.profiles.get(group.profile)
        if profile is None:
            known = f"; the profiles are {', '.join(self.profiles)}"
            problem = f'profile "{group.profile}" does not exist{suggestion(group.profile, self.profiles, quiet=known)}'
            self.report.problem((*place, "profile"), problem)
            return EngineSize(chunk_tokens=1, sequences_max=1, kv_blocks=1, block_tokens=1, context_tokens=1)
        block_tokens = group.block_tokens or profile.block_tokens
        size = EngineSize(
            chunk_tokens=group.chunk_tokens or profile.chunk_tokens,
            sequences_max=group.sequences_max or profile.sequences_max,
            kv_blocks=(group.kv_tokens or profile.kv_blocks * profile.block_tokens) // block_tokens,
            block_tokens=block_tokens,
            context_tokens=group.context_tokens or profile.context_tokens,
        )
        self._check(size, place)
        return size

    def _check(self, size: EngineSize, place: Place) -> None:
        if size.chunk_tokens < size.sequences_max:
            problem = (
                f"is {size.chunk_tokens}, less than sequences_max {size.sequences_max}, and every running sequence "
                "needs its token in each step; raise it, or lower sequences_max"
            )
            self.report.problem((*place, "chunk_tokens"), problem)
        if TRACE_BLOCK_TOKENS % size.block_tokens:
            problem = f"must divide {TRACE_BLOCK_TOKENS}, which prefixes of traces are counted in, such as 16 or 32"
            self.report.problem((*place, "block_tokens"), problem)
        held = size.kv_blocks * size.block_tokens
        if held < size.context_tokens:
            problem = (
                f"holds {held} tokens, less than the longest context of {size.context_tokens}; "
                f"set context_tokens to {held} or less beside it, or raise it"
            )
            self.report.problem((*place, "kv_tokens"), problem)
