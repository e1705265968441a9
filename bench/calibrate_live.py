"""Calibrate real and simulated engines, and report how far the profiles are off.

    just calibrate-live [--engines vllm,llamacpp,simulated] [--seconds N] [--smoke] [--assert]

`headgate calibrate` measures each engine. For vLLM on CPU and llama.cpp, the figure is the worst error of its
prediction of an unseen mixed load: TTFT, time per output token and end-to-end latency, p50 and p95. The simulated
engine has a known profile, so its figure is the worst error of the five fitted time parameters. A table is written to
stdout, followed by the worst errors as JSON on the last line. Engines that were not selected are null.

The table shows next to each error how much the measured latency changed when the same load was sent again, the load
average, and the CPU time that other processes used. An engine on a CPU shares its cores with them.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from types import MappingProxyType
from typing import Any, Final

from bench.cli import print_progress, report_problem, stop_cleanly_on_sigterm
from bench.cpu_cores import core_busy_ns, cpu_ns_between, cpu_times, family_of
from headgate.config.engine_profiles import profile_text
from headgate.model.engine_profile import EngineProfile
from testing.processes import ProcessFailedError
from testing.real_engines import llamacpp, vllm
from testing.simulated_engines import HEADGATE, simulated_engines

REAL_MAX: Final = 0.15
SIMULATED_MAX: Final = 0.03
LIMITS: Final = MappingProxyType({"vllm": REAL_MAX, "llamacpp": REAL_MAX, "simulated": SIMULATED_MAX})
TRUE: Final = EngineProfile(
    name="known",
    step_ps=40_000_000_000,
    prefill_token_ps=400_000_000,
    decode_sequence_ps=3_000_000_000,
    kv_token_ps=2_000_000,
    attention_ps=150_000,
    chunk_tokens=512,
    sequences_max=16,
    kv_blocks=2_048,
    context_tokens=4_096,
)
"""Profile in which every parameter matters, and with steps that are long compared with the timers of a busy machine."""
PARAMETERS: Final = ("step_ps", "prefill_token_ps", "decode_sequence_ps", "kv_token_ps", "attention_ps")
SEQUENCES: Final = MappingProxyType({"vllm": 8, "llamacpp": 4, "simulated": 16})
SETTINGS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "vllm": ("--chunk-tokens", "2048", "--no-async-scheduling"),
        "llamacpp": ("--chunk-tokens", "512", "--no-async-scheduling"),
        "simulated": (),
    }
)
"""Known settings of the engines' schedulers. Those of the simulated engine are fitted."""
SECONDS: Final = 180.0
SMOKE_SECONDS: Final = 10.0
SMOKE_SPEED_UP: Final = 20


class CalibrationFailed(Exception):
    """The command produced no profile. The message is its last line."""


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    true = _fast(TRUE) if arguments.smoke else TRUE
    worst = dict[str, float | None].fromkeys(LIMITS)
    for name in arguments.engines:
        try:
            with _engine(name, true) as (url, model), _other_work(name):
                page = _calibrated(url, model, name, SMOKE_SECONDS if arguments.smoke else arguments.seconds)
        except (CalibrationFailed, ProcessFailedError) as error:
            return report_problem("calibrate-live", f"{name}: {error}")
        errors = _parameter_errors(page, true) if name == "simulated" else page["unseen"]["errors"]
        worst[name] = max(abs(each) for each in errors.values())
        _show(name, page, errors)
    print(json.dumps(worst))
    missed = any(each is not None and each > LIMITS[name] for name, each in worst.items())
    return 1 if arguments.check and missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just calibrate-live", description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--engines", type=_engines, default=list(LIMITS), metavar="NAMES", help=f"Engines (default {','.join(LIMITS)})."
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="N", help=f"Length of each sweep (default {SECONDS:g})."
    )
    parser.add_argument("--smoke", action="store_true", help="Run short sweeps; the results are meaningless.")
    parser.add_argument("--assert", dest="check", action="store_true", help="Exit 1 if a limit is missed.")
    return parser.parse_args(words)


def _engines(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in LIMITS]:
        raise argparse.ArgumentTypeError(f'"{unknown[0]}" is not one of {", ".join(LIMITS)}')
    return names


@contextmanager
def _engine(name: str, true: EngineProfile) -> Generator[tuple[str, str]]:
    """The engine's URL and model."""
    match name:
        case "vllm":
            # The polling process would compete with the measuring one for the second core.
            with vllm(max_num_seqs=SEQUENCES[name], polling=False) as engine:
                yield engine.url, engine.model
        case "llamacpp":
            with llamacpp(parallel=SEQUENCES[name], batch=512) as engine:
                yield engine.url, engine.model
        case _:
            with tempfile.TemporaryDirectory(prefix="headgate-calibrate-") as folder:
                file = Path(folder) / "known.yaml"
                file.write_text(profile_text(true))
                with simulated_engines(1, "--profile", str(file), model=true.name) as urls:
                    yield urls[0], true.name


def _calibrated(url: str, model: str, name: str, seconds: float) -> dict[str, Any]:
    command = [*HEADGATE, "calibrate", "--url", url, "--model", model, "--seconds", f"{seconds:g}", "--json"]
    command += ["--sequences-max", str(SEQUENCES[name]), "--seed", "1", *SETTINGS[name]]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if not ended.stdout:
        raise CalibrationFailed("".join(ended.stderr.splitlines()[-1:]))
    page: dict[str, Any] = json.loads(ended.stdout)
    for warning in page["warnings"]:
        print_progress(f"warning: {warning}")
    return page


@contextmanager
def _other_work(name: str) -> Generator[None]:
    """Prints how much CPU time other processes used meanwhile. They slow down an engine on a CPU."""
    cores = range(os.cpu_count() or 1)
    start_ns, own = monotonic_ns(), cpu_times(family_of(os.getpid()))
    busy_ns, ended_s = sum(map(core_busy_ns, cores)), _ended_children_s()
    yield
    other_ns = sum(map(core_busy_ns, cores)) - busy_ns - round((_ended_children_s() - ended_s) * 1e9)
    other_ns -= cpu_ns_between(own, cpu_times(family_of(os.getpid())))
    share = max(0, other_ns) / (monotonic_ns() - start_ns)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{name}: other processes used {share:.0%} of a core on average, load average {load}")


def _ended_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _parameter_errors(page: Mapping[str, Any], true: EngineProfile) -> dict[str, float]:
    return {name: round(page["profile"][name] / getattr(true, name) - 1, 4) for name in PARAMETERS}


def _fast(profile: EngineProfile) -> EngineProfile:
    """A profile for which a short sweep has enough requests."""
    return replace(profile, **{name: getattr(profile, name) // SMOKE_SPEED_UP for name in PARAMETERS})


def _show(name: str, page: Mapping[str, Any], errors: Mapping[str, float]) -> None:
    print(f"{name}: {page['engine']}, {page['requests']} requests, overhead {page['overhead_ms']:g} ms")
    repeats: dict[str, float] = page["unseen"]["repeat_errors"]
    for figure, error in errors.items():
        twice = f"   same load twice: {repeats[figure]:+.1%}" if figure in repeats else ""
        print(f"  {figure:<20}{error:>+9.1%}{twice}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
