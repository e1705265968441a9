"""Sends the bursts of a calibration sweep with the load generator and returns the measured times."""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.cli.calibration.live_engine import LiveEngine
from headgate.loadtest.load_test import LoadTest, LoadTestPlan
from headgate.loadtest.schedule import Schedule
from headgate.loadtest.senders import Sender, TokenRange
from headgate.loadtest.target import TargetUrl
from headgate.model.ticket import Api
from headgate.model.units import SECOND, Instant
from headgate.planning.bursts import Burst, MeasuredBurst, SweepPhase
from headgate.planning.calibration import CalibrationError
from headgate.planning.engine_replay import RunRequest, TokenTimes
from headgate.wire.escape import escaped

if TYPE_CHECKING:
    from headgate.loadtest.generator import RunCounts

PROBES: Final = (32, 256)
"""Prompt lengths of the requests that measure how many tokens the engine counts in a prompt."""
PROBE_OUTPUT: Final = 8
WATCH_EVERY_S: Final = 0.5
WATCH_TIMES: Final = 3
"""Number of consecutive scrapes with foreign requests after which the engine counts as disturbed."""
SEEDS_APART: Final = 7_919
"""Distance between the prompt seeds of two bursts. Prompts of the same seed and number are equal."""


class _Line(msgspec.Struct):
    """The part of a line of the request log that matters here."""

    number: int
    sent_s: float | None
    first_token_s: float | None
    end_s: float
    outcome: str
    status: int | None
    code: str | None
    prompt_tokens: int
    output_tokens: int
    usage_reported: bool


_LINE: Final = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class SweepWarnings:
    """What makes the measurements unreliable."""

    late_bursts: int = 0
    disturbed_bursts: int = 0
    cut_outputs: int = 0
    """Number of responses shorter than requested."""

    def texts(self) -> list[str]:
        found: list[str] = []
        if self.late_bursts:
            found.append(
                f"the sender fell behind in {self.late_bursts} bursts; run it on a machine with an idle CPU core"
            )
        if self.disturbed_bursts:
            found.append(
                f"the engine reported other requests during {self.disturbed_bursts} bursts; repeat the calibration on "
                "an engine without other traffic"
            )
        return found


@dataclass(slots=True)
class BurstSender:
    engine: LiveEngine
    target: TargetUrl
    model: str
    key: str | None = field(repr=False)
    context_tokens: int
    timeout_s: float
    """Maximum time for the last responses of a burst."""
    seed: int
    warnings: SweepWarnings = field(default_factory=SweepWarnings)
    exact_output: bool = True
    """Whether requests ask for outputs of exactly the maximum length."""
    requests: int = 0
    """Number of requests sent."""
    _api: Api = Api.COMPLETIONS
    """A chat template is the same beginning of every prompt, so its tokens would hit the engine's prefix cache."""
    _tokens_per_requested: float = 1.0
    _tokens_added: float = 0.0
    """Tokens that the engine adds to each prompt, such as its chat template."""
    _bursts: int = 0

    async def probe(self) -> None:
        """Warms up the engine, and measures how it counts prompt tokens. Raises `CalibrationError`."""
        counted: list[int] = []
        lengths = [min(each, self.context_tokens // 4) for each in PROBES]
        for length in (lengths[0], *lengths):
            [line] = await self._probe_once(length)
            self._check(line)
            counted = [*counted, line.prompt_tokens][-2:]
        if lengths[1] > lengths[0]:
            self._tokens_per_requested = max(0.1, (counted[1] - counted[0]) / (lengths[1] - lengths[0]))
        self._tokens_added = max(0.0, counted[0] - self._tokens_per_requested * lengths[0])

    async def _probe_once(self, length: int) -> list[_Line]:
        request = RunRequest(Instant(0), length, PROBE_OUTPUT)
        lines = await self._send([request])
        if self._api is Api.COMPLETIONS and lines[0].status in (404, 405, 501):
            self._api = Api.CHAT
            lines = await self._send([request])
        if self.exact_output and lines[0].status in (400, 422):  # The engine does not know `ignore_eos`.
            self.exact_output = False
            lines = await self._send([request])
        return lines

    async def send(self, burst: Burst) -> MeasuredBurst:
        """Sends a burst and waits for its responses. Raises `CalibrationError` if a request failed."""
        lines = await self._send([self._as_requested(each) for each in burst.requests])
        for line in lines:
            self._check(line)
        self.warnings.cut_outputs += sum(
            line.output_tokens < each.output_tokens for line, each in zip(lines, burst.requests, strict=True)
        )
        pairs = sorted((_pair(line) for line in lines), key=lambda pair: pair[0].arrived_at)
        measured = MeasuredBurst(tuple(each for each, _ in pairs), tuple(each for _, each in pairs))
        if burst.phase in (SweepPhase.MIXED, SweepPhase.UNSEEN):
            _check_pieces(measured)
        return measured

    def _as_requested(self, request: RunRequest) -> RunRequest:
        """The request whose prompt the engine will count as this many tokens."""
        tokens = (request.prompt_tokens - self._tokens_added) / self._tokens_per_requested
        return replace(request, prompt_tokens=max(1, round(tokens)))

    async def _send(self, requests: Sequence[RunRequest]) -> list[_Line]:
        """Returns one line per request, in the order of the requests."""
        schedule = Schedule()
        for each in requests:
            schedule.add(each.arrived_at, prompt_tokens=each.prompt_tokens, output_tokens=each.output_tokens, sender=0)
        schedule.length_ns = requests[-1].arrived_at
        self._bursts += 1
        self.requests += len(requests)
        plan = LoadTestPlan(
            target=self.target,
            model=self.model,
            schedule=schedule,
            senders=(Sender(prompt=TokenRange(1, 1), output=TokenRange(1, 1), key=self.key, api=self._api),),
            seed=self.seed + SEEDS_APART * self._bursts,
            exact_output=self.exact_output,
            retries_max=0,
            drain_s=self.timeout_s,
        )
        log = io.BytesIO()
        self.warnings.disturbed_bursts += await self.engine.is_disturbed()
        watching: list[asyncio.Task[bool]] = []
        result = await LoadTest(plan, record=log).run(
            lambda counts: watching.append(asyncio.create_task(self._watch(counts)))
        )
        self.warnings.late_bursts += result.counts.is_behind
        self.warnings.disturbed_bursts += await _stopped(watching[0])
        return sorted((_LINE.decode(line) for line in log.getvalue().splitlines()), key=lambda line: line.number)

    async def _watch(self, counts: "RunCounts") -> bool:
        """Returns True once the engine has reported more requests than this sender has open several times."""
        times = 0
        while times < WATCH_TIMES:
            await asyncio.sleep(WATCH_EVERY_S)
            before = counts.open
            reported = await self.engine.open_requests()
            foreign = reported is not None and reported > max(before, counts.open)
            times = times + 1 if foreign else 0
        return True

    def _check(self, line: _Line) -> None:
        """Raises `CalibrationError` if the response cannot be used."""
        if line.outcome != "completed":
            raise CalibrationError(_failure(line))
        if not line.usage_reported:
            raise CalibrationError(
                "the engine does not report token usage in streams (stream_options.include_usage), so its tokens "
                "cannot be counted; enable usage in the engine, or calibrate it without the proxy that removes it"
            )
        if line.prompt_tokens < 1 or line.output_tokens < 1 or line.first_token_s is None or line.sent_s is None:
            raise CalibrationError(
                f"the engine reports {line.prompt_tokens} prompt and {line.output_tokens} output tokens for a "
                "completed request; check that the model generates text"
            )
        if line.prompt_tokens + line.output_tokens > self.context_tokens:
            raise CalibrationError(
                f"the engine reports {line.prompt_tokens} prompt and {line.output_tokens} output tokens, more than its "
                f"context of {self.context_tokens}; check --context-tokens, and that the engine counts tokens correctly"
            )


async def _stopped(task: asyncio.Task[bool]) -> bool:
    task.cancel()
    [found] = await asyncio.gather(task, return_exceptions=True)
    return found is True


def _pair(line: _Line) -> tuple[RunRequest, TokenTimes]:
    assert line.sent_s is not None
    assert line.first_token_s is not None
    sent_at = _instant(line.sent_s)
    first_token_at = Instant(max(_instant(line.first_token_s), sent_at + 1))
    return (
        RunRequest(sent_at, line.prompt_tokens, line.output_tokens),
        TokenTimes(first_token_at, Instant(max(_instant(line.end_s), first_token_at))),
    )


def _instant(moment_s: float) -> Instant:
    return Instant(round(moment_s * SECOND))


def _check_pieces(measured: MeasuredBurst) -> None:
    """Raises `CalibrationError` if many streams arrived in one piece, so that their tokens have no times."""
    whole = sum(each.first_token_at >= each.last_token_at for each in measured.token_times)
    if whole > len(measured.requests) / 10:
        raise CalibrationError(
            f"{whole} of {len(measured.requests)} responses arrived in one piece instead of token by token; calibrate "
            "the engine directly, without a proxy that buffers streams"
        )


def _failure(line: _Line) -> str:
    code = escaped(line.code or "no code")
    match line.outcome, line.status:
        case "unfinished", _:
            return "the engine did not finish a request in time; check that it is not hanging, or raise --seconds"
        case "connection_failed", _:
            return f"the connection to the engine failed ({code}); check that it is running"
        case _, 401 | 403:
            return f"the engine rejected the API key ({line.status}); set --api-key"
        case "interrupted", _:
            return f"the engine interrupted a response ({code}); check the engine's log"
        case _:
            return (
                f"the engine rejected a request with status {line.status} ({code}); check its log, and the limits "
                "given with --context-tokens and --kv-tokens"
            )
