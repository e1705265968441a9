"""Checks before a drill: the fleet must be healthy, and nothing else may be changing it."""

from collections.abc import Iterator, Mapping
from typing import Any

from headgate.cli.drills.drill_run import DrillRefused, DrillRun
from headgate.cli.drills.fleet import DrillSample, active_overrides
from headgate.cli.drills.override_act import is_drill
from headgate.cli.input.admin_request import AdminRequestFailed
from headgate.control.trials.plan import BLOCK_VERB as TRIAL_BLOCK
from headgate.control.trials.plan import VERB as TRIAL
from headgate.control.trials.plan import TrialPhase, trial_of


async def check_fleet(run: DrillRun, *, force: bool) -> None:
    """Takes the first sample. Raises `DrillRefused` unless the fleet is fit for a drill."""
    sample = await run.take_sample()
    if not sample.statuses or (sample.unreachable and not force):
        raise DrillRefused("; ".join(sample.unreachable))
    try:
        overrides = await active_overrides(run.fleet)
    except AdminRequestFailed as problem:
        raise DrillRefused(str(problem)) from None
    run.known_overrides = frozenset(str(each["override"]) for each in overrides)
    problems = [*_problems(sample), *_override_problems(overrides)]
    if problems and not force:
        raise DrillRefused("; ".join(problems) + "; resolve this first, or use --force")
    known = {text for _, text in run.timeline}
    for problem in problems:
        if (text := f"started with --force although {problem}") not in known:
            run.note(text)


async def watch_before(run: DrillRun, seconds: float, *, force: bool) -> None:
    """Watches the fleet before the act, and checks it once more. Raises `DrillRefused`."""
    await run.watch("before", seconds)
    if run.stopped:
        raise DrillRefused("stopped before the drill began; nothing was changed")
    await check_fleet(run, force=force)


def _problems(sample: DrillSample) -> Iterator[str]:
    status = sample.status
    if status is None:
        yield "no gateway that responds makes scheduling decisions"
        return
    if any(each.draining for each in sample.statuses.values()):
        yield "a gateway is shutting down"
    unready = [f"{each.id} ({each.state})" for each in sample.endpoints if each.state != "ready"]
    if unready:
        yield f"not all endpoints are ready: {', '.join(unready)}"
    if not sample.endpoints:
        yield "there are no endpoints"
    for incident, sentence in sample.incidents.items():
        yield f"the verdict is {incident}: {sentence.rstrip('.')}"
    if status.cell is not None:
        absent = [name for name, each in status.cell.members.items() if each.standing != "present"]
        if absent:
            yield f"members of the cell are absent: {', '.join(absent)}"


def _override_problems(overrides: list[dict[str, Any]]) -> Iterator[str]:
    for each in overrides:
        what = f"{each.get('verb')} {each.get('target')} ({each.get('override')})"
        if is_drill(each):
            yield f"another drill is running: {what}"
            continue
        match each.get("verb"):
            case "rollout":
                yield f"a rollout is running: {what}"
            case "drain":
                yield f"an operator has drained an endpoint: {what}"
            case "hold":
                yield f"an operator holds the requests of a class: {what}"
            case "pin":
                yield f"an operator has pinned a pool's degradation level: {what}"
            case verb if verb == TRIAL_BLOCK or (verb == TRIAL and _may_run(each)):
                yield f"a setting trial is running: {what}"
            case _:
                pass


def _may_run(row: Mapping[str, Any]) -> bool:
    """Whether a trial is running. Its row remains for the time for which the new value is kept."""
    trial = trial_of(str(row.get("target")), row)
    return trial is None or trial.phase is TrialPhase.RUNNING
