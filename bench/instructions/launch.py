"""Start the gateway under callgrind, with the instruction counter loaded: python -m bench.instructions.launch ARGS.

Commands other than `serve` run without callgrind, because they are not measured. The environment variables
HEADGATE_COUNTER_LIBRARY and HEADGATE_COUNTER_OUT contain the paths of the compiled counter (`counter.c`) and of
callgrind's output file.
"""

import os
import sys
from typing import Final

VALGRIND: Final = (
    "valgrind",
    "--tool=callgrind",
    "--instr-atstart=no",
    "--combine-dumps=yes",
    "--quiet",
)
# The garbage collector would run at different points in each run.
START: Final = (
    "import ctypes, gc, sys; ctypes.PyDLL(None).install(); from headgate.cli.main import main; "
    "gc.disable(); sys.exit(main())"
)


def main() -> None:
    arguments = sys.argv[1:]
    command = [sys.executable, "-c", START, *arguments]
    if arguments[:1] == ["serve"]:
        # The library selects what is collected in the main thread. Other threads collect always or never.
        others = "yes" if os.environ["HEADGATE_COUNTER_THREADS"] == "all" else "no"
        collect = f"--collect-atstart={others}"
        command = [*VALGRIND, collect, f"--callgrind-out-file={os.environ['HEADGATE_COUNTER_OUT']}", *command]
        # Hash order would otherwise differ from run to run, and with it the number of instructions.
        environment = os.environ | {"LD_PRELOAD": os.environ["HEADGATE_COUNTER_LIBRARY"], "PYTHONHASHSEED": "0"}
        os.execvpe(command[0], command, environment)  # noqa: S606
    os.execvp(sys.executable, [sys.executable, "-m", "headgate.cli.main", *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
