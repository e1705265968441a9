"""Run the fuzz targets, each for a limited time.

    python -m fuzz.run [SECONDS] [TARGET ...]      fuzz each target (default: 30 seconds)
    python -m fuzz.run --seeds [TARGET ...]        run only the seeds in fuzz/corpus

Findings are written to fuzz/corpus/TARGET as `crash-…`. Keep a finding as a seed once you understand it. Each target
runs in its own process, because a crash ends the process.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
CORPUS = FOLDER / "corpus"
TARGETS = (
    "request_body",
    "event_stream",
    "responses_stream",
    "messages_stream",
    "kserve_stream",
    "joined_stream",
    "usage",
    "replies",
    "connection",
    "engine_connection",
    "multipart",
    "trace_context",
)
SECONDS = 30
INPUT_BYTES_MAX = 4096


def seeds_of(target: str) -> list[Path]:
    return sorted(path for path in (CORPUS / target).iterdir() if path.is_file())


def run_seeds(target: str) -> None:
    """Run the seeds without atheris, so that a failure shows the seed's name and a traceback."""
    one_input = importlib.import_module(f"fuzz.{target}").one_input
    for seed in seeds_of(target):
        try:
            one_input(seed.read_bytes())
        except Exception as error:
            error.add_note(f"with the seed {seed.relative_to(FOLDER)}")
            raise


def fuzz(target: str, arguments: list[str]) -> None:
    """Fuzz a target in this process. Does not return, because libFuzzer exits the process."""
    import atheris

    with atheris.instrument_imports(include=["headgate"], enable_loader_override=False):
        one_input = importlib.import_module(f"fuzz.{target}").one_input
    atheris.Setup([f"fuzz/{target}", *arguments], one_input)
    atheris.Fuzz()


def fuzz_beside(target: str, seconds: int, found: Path) -> int:
    """Fuzz a target in a child process, starting from the seeds. Findings are written to `found`."""
    with tempfile.TemporaryDirectory(prefix="headgate-fuzz-") as grown:
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-artifact_prefix={found}{os.sep}",
            "-timeout=10",
            "-rss_limit_mb=1024",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        command = [sys.executable, "-m", "fuzz.run", "--one", target, *options, grown, str(CORPUS / target)]
        return subprocess.run(command, cwd=FOLDER.parent, check=False).returncode


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--one"]:
        fuzz(arguments[1], arguments[2:])
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", action="store_true", help="run only the seeds in fuzz/corpus")
    parser.add_argument("--found", type=Path, help="directory for findings (default: the corpus)")
    parser.add_argument("words", nargs="*", metavar="SECONDS|TARGET")
    given = parser.parse_args(arguments)
    seconds = next((int(word) for word in given.words if word.isdigit()), SECONDS)
    targets = [word for word in given.words if not word.isdigit()] or list(TARGETS)
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; the targets are {', '.join(TARGETS)}")
    failed = []
    for target in targets:
        run_seeds(target)
        if given.seeds:
            print(f"{target}: {len(seeds_of(target))} seeds pass")
        elif fuzz_beside(target, seconds, given.found or CORPUS / target) != 0:
            failed.append(target)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
