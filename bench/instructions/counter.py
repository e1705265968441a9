"""Control of the instruction counter: compiles `counter.c`, selects what it counts and reads the counts."""

import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testing.processes import MissingProgram

SOURCE: Final = Path(__file__).with_name("counter.c")
OUTSIDE: Final = 1
"""Phase that counts what runs outside all units: the event loop and its C libraries."""
TOTAL: Final = 1_000_000
UNITS_MAX: Final = 20_000
NOTHING: Final = 1_000_001
PHASE_SECONDS_MAX: Final = 60.0
_DUMP: Final = re.compile(
    r"^desc: Trigger: Client Request: phase (\d+)$.*?^(?:totals|summary): (\d+)", re.MULTILINE | re.DOTALL
)


class Control(ctypes.Structure):
    """Layout of the shared memory, as in `counter.c`."""

    _fields_ = (
        ("phase", ctypes.c_int),
        ("clock_divisor", ctypes.c_int),
        ("phase_seen", ctypes.c_int),
        ("used", ctypes.c_ubyte * UNITS_MAX),
    )
    phase: int
    clock_divisor: int
    phase_seen: int
    used: ctypes.Array[ctypes.c_ubyte]


class Counter:
    """Counter of one gateway process, controlled through files in `folder`.

    `units` maps the beginning of PATH:QUALNAME; to the number of a phase. With `all_threads`, other threads count in
    every phase.
    """

    def __init__(self, folder: Path, units: Mapping[str, int], *, all_threads: bool = False) -> None:
        self._out = folder / "callgrind.out"
        check_valgrind()
        file, listed = folder / "control", folder / "units"
        file.write_bytes(bytes(ctypes.sizeof(Control)))
        listed.write_text("".join(f"{number} {beginning}\n" for beginning, number in units.items()))
        with file.open("r+b") as opened:
            self._control = Control.from_buffer(mmap.mmap(opened.fileno(), ctypes.sizeof(Control)))
        self._control.clock_divisor = 1
        self.environment = {
            "HEADGATE_COUNTER_THREADS": "all" if all_threads else "main",
            "HEADGATE_COUNTER_LIBRARY": str(compile_counter(folder)),
            "HEADGATE_COUNTER_CONTROL": str(file),
            "HEADGATE_COUNTER_OUT": str(self._out),
            "HEADGATE_COUNTER_UNITS": str(listed),
        }

    def slow_clock(self, divisor: int) -> None:
        self._control.clock_divisor = divisor

    def begin(self, phase: int) -> None:
        """Start a phase. The process notices it the next time it reads the clock."""
        self._control.phase = phase

    def check_begun(self) -> None:
        give_up_at = time.monotonic() + PHASE_SECONDS_MAX
        while self._control.phase_seen != self._control.phase:
            if time.monotonic() > give_up_at:
                raise TimeoutError("the gateway has not read its clock for a minute")
            time.sleep(0.01)

    def has_run(self, unit: int) -> bool:
        """Whether code of the unit has run since its frames are evaluated here."""
        return bool(self._control.used[unit])

    def counts(self) -> list[tuple[int, int]]:
        """Return phase and instructions of each finished phase, in order."""
        return phase_counts(self._out.read_text())


def phase_counts(text: str) -> list[tuple[int, int]]:
    """Read the dumps in a callgrind output file. Each dump names its phase and has its total."""
    return [(int(phase), int(instructions)) for phase, instructions in _DUMP.findall(text)]


def check_valgrind() -> None:
    if shutil.which("valgrind") is None:
        raise MissingProgram("valgrind not found; run apt-get install valgrind gcc libc6-dev")


def compile_counter(folder: Path) -> Path:
    library = folder / "counter.so"
    # -w: the headers of the interpreter's internals cause warnings.
    options = ["-O2", "-shared", "-fPIC", "-w", "-Wl,-z,lazy", f"-I{sysconfig.get_paths()['include']}"]
    command = [os.environ.get("CC", "gcc"), *options, str(SOURCE), "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise MissingProgram("no C compiler found; run apt-get install gcc libc6-dev valgrind") from None
    if done.returncode:
        raise MissingProgram(f"the instruction counter does not compile:\n{done.stderr}")
    return library
