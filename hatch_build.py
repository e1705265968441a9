"""Build hook of the wheel. With HEADGATE_COMPILE=1, mypyc compiles the packages in COMPILED; otherwise it does nothing.

A compiled wheel contains the same Python files and, beside them, one extension module each. Python imports the
extension module if there is one. `python hatch_build.py DIRECTORY` writes the extension modules to a directory.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "core",
    "model",
    "edge/app.py",
    "edge/auth.py",
    "edge/body_bytes.py",
    "edge/body_framing.py",
    "edge/client.py",
    "edge/connection.py",
    "edge/connections.py",
    "edge/error_replies.py",
    "edge/exchange.py",
    "edge/generation_reporter.py",
    "edge/kserve.py",
    "edge/open_attempts.py",
    "edge/parse_queue.py",
    "edge/parsed_request.py",
    "edge/relay.py",
    "edge/request_head.py",
    "edge/request_reader.py",
    "edge/request_record.py",
    "edge/tenant_shares.py",
    "wire/chunk_sizes.py",
    "engines/connect_times.py",
    "engines/engine_connection.py",
    "engines/http_engine.py",
    "engines/http_response.py",
    "hosts/cell/leader",
    "hosts/cell/protocol/link.py",
    "hosts/cell/protocol/validation.py",
    "hosts/command_channel.py",
    "hosts/decision_time.py",
    "hosts/local/clock.py",
    "hosts/local/host.py",
    "ports/records.py",
    "telemetry/decision_history.py",
    "telemetry/log_observer.py",
    "telemetry/meter_types.py",
    "telemetry/meters.py",
    "telemetry/records/record_keeper.py",
    "telemetry/tenant_activity.py",
    "wire/body_fields.py",
    "wire/conversation.py",
    "wire/fields.py",
    "wire/fingerprint.py",
    "wire/keys.py",
    "wire/media.py",
    "wire/prompt_length.py",
    "wire/request_caps.py",
    "wire/request_checks.py",
    "wire/responses_scanner.py",
    "wire/sse.py",
    "wire/turn_budget.py",
    "wire/usage.py",
)
"""Compiled packages and files of headgate."""
INTERPRETED = ("model/message.py",)
"""Files in compiled packages that stay interpreted. message.py has a class decorator that calls `dataclass`."""
REQUIREMENTS = ("mypy>=2.4,<3", "setuptools>=77")

_MESSAGE_IMPORT = "from headgate.model.message import message\n"
_DATACLASS_IMPORT = "from dataclasses import dataclass as message\n"
_PROTOCOL_BASE = "(asyncio.Protocol)"
"""mypyc cannot compile a class with this base, whose `__slots__` it inherits. Event loops need only its methods."""
_C_OPTIONS = "-fvisibility=hidden -fno-plt"
"""Makes calls between the compiled files direct, without a lookup of the symbol at run time."""
_MYPYC = """
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

class ParallelBuild(build_ext):
    def build_extensions(self):
        # `build_ext --parallel` builds several modules at once, but nearly all C files belong to one module.
        compile_files = self.compiler.compile
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        def compile_in_parallel(sources, output_dir=None, **options):
            # If several threads create the same directory, one may write to it too early.
            for name in self.compiler.object_filenames(sources, output_dir=output_dir or ""):
                os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            with ThreadPoolExecutor(cores) as pool:
                jobs = [pool.submit(compile_files, [each], output_dir=output_dir, **options) for each in sources]
                try:
                    return [name for job in jobs for name in job.result()]
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        self.compiler.compile = compile_in_parallel
        super().build_extensions()

options = ["--explicit-package-bases", "--namespace-packages", "--follow-imports=silent"]
options.append("--disable-error-code=type-var")  # The event loop's functions require the base class asyncio.Protocol.
extensions = mypycify([*options, *sys.argv[1:]], opt_level="3", debug_level="0", multi_file=True, group_name="headgate")
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
setup(name="headgate", ext_modules=extensions, packages=[], cmdclass={"build_ext": ParallelBuild})
"""


class CompileHook(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel."""

    def dependencies(self) -> list[str]:
        """Return the compiler and the libraries that the compiled files import, because mypyc reads their types."""
        if not _is_requested():
            return []
        project = tomllib.loads((Path(self.root) / "pyproject.toml").read_text())["project"]
        return [*REQUIREMENTS, *project["dependencies"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _is_requested() or version == "editable":
            return
        output = self._output()
        shutil.rmtree(output, ignore_errors=True)
        compile_packages(Path(self.root) / "src" / "headgate", output)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for built in extension_modules(output):
            build_data["force_include"][str(built)] = str(built.relative_to(output))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._output(), ignore_errors=True)

    def _output(self) -> Path:
        return Path(self.directory) / "compiled"


def _is_requested() -> bool:
    return os.environ.get("HEADGATE_COMPILE", "") not in {"", "0"}


def compile_packages(source: Path, output: Path) -> None:
    """Compile the headgate package in `source` and write the extension modules to `output`, in the same structure."""
    with tempfile.TemporaryDirectory(prefix="headgate-compile-") as made:
        folder = Path(made)
        shutil.copytree(source, folder / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
        compiled = sorted(str(path.relative_to(folder)) for path in compiled_files(folder / "headgate"))
        for name in compiled:
            path = folder / name
            path.write_text(prepare(path.read_text()))
        # mypyc works in the current directory and setuptools reads sys.argv, so both run in a separate process.
        environment = {**os.environ, "CFLAGS": f"{os.environ.get('CFLAGS', '')} {_C_OPTIONS}"}
        subprocess.run([sys.executable, "-c", _MYPYC, *compiled], cwd=folder, env=environment, check=True)
        shutil.rmtree(folder / "build")
        for built in extension_modules(folder):
            target = output / built.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, target)


def compiled_files(package: Path) -> Iterator[Path]:
    for name in COMPILED:
        path = package / name
        for each in [path] if path.is_file() else path.rglob("*.py"):
            if str(each.relative_to(package)) not in INTERPRETED:
                yield each


def extension_modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


def prepare(source: str) -> str:
    """Rewrite classes for mypyc, without moving any statement to another line.

    mypyc leaves the `__init__` that `dataclass` generates interpreted, so it is written out. It drops the parameters of
    annotations (`tuple[int, ...]` becomes `tuple`), so `complete_class` sets them again. Both are added on the two
    blank lines that follow a class. Network protocols lose their base class.
    """
    lines = [*source.splitlines(), "", ""]
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(_PROTOCOL_BASE, "")
        decorators = [each for each in node.decorator_list if _is_dataclass(each)]
        for decorator in decorators:
            lines[decorator.lineno - 1] = _without_slots(lines[decorator.lineno - 1])
        end = node.end_lineno or 0
        if decorators or any(ast.unparse(base) == "NamedTuple" for base in node.bases):
            _set_blank(lines, end + 1, _completion(node))
        if decorators and (written := _initializer(node, decorators[0])):
            _set_blank(lines, end, written)
    return "\n".join(lines).rstrip().replace(_MESSAGE_IMPORT, _DATACLASS_IMPORT) + "\n"


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id in {"dataclass", "message"}


def _without_slots(line: str) -> str:
    """Remove `slots=True`, which mypyc does not accept and whose effect every compiled class has."""
    if line.strip() == "@message":
        return line + "(unsafe_hash=True)"
    return line.replace(", slots=True", "").replace("slots=True, ", "").replace("slots=True", "")


def _set_blank(lines: list[str], number: int, text: str) -> None:
    assert not lines[number].strip(), f"line {number + 1} is not blank: {lines[number]}"
    lines[number] = text


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.annotation).startswith("ClassVar"):
            yield each


def _completion(node: ast.ClassDef) -> str:
    found = {ast.unparse(each.target): ast.unparse(each.annotation).strip("\"'") for each in _fields(node)}
    return f"import headgate.compiled_classes; headgate.compiled_classes.complete_class({node.name}, {found!r})"


def _initializer(node: ast.ClassDef, decorator: ast.expr) -> str | None:
    """Return an `__init__` in one line, or None if a field has a default factory."""
    parameters = ["self"] + (["*"] if "kw_only=True" in ast.unparse(decorator) else [])
    statements: list[str] = []
    for each in _fields(node):
        name, default = ast.unparse(each.target), each.value
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
            default = next((word.value for word in default.keywords if word.arg == "default"), None)
            if default is None:
                return None
        given = "" if default is None else f" = {ast.unparse(default)}"
        parameters.append(f"{name}: {ast.unparse(each.annotation)}{given}")
        statements.append(f"self.{name} = {name}")
    if any(isinstance(each, ast.FunctionDef) and each.name == "__post_init__" for each in node.body):
        statements.append("self.__post_init__()")
    # A frozen dataclass may not assign to its fields.
    ignored = "  # type: ignore[misc]"
    return f"    def __init__({', '.join(parameters)}) -> None: {'; '.join(statements or ['pass'])}{ignored}"


if __name__ == "__main__":
    compile_packages(Path(__file__).parent / "src" / "headgate", Path(sys.argv[1]))
