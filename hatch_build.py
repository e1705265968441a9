"""Version and build hook of the wheel.

The hook writes the version into the package. With HEADGATE_COMPILE=1, it also compiles the packages in COMPILED with
mypyc. A compiled wheel contains the same Python files and, beside them, one extension module each. Python imports the
extension module if there is one.

`python hatch_build.py` compiles and prints the directory of the extension modules, which is in a cache.
"""

import ast
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "core",
    "model",
    "edge/anthropic.py",
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
    "hosts/cell/command_executor.py",
    "hosts/cell/leader",
    "hosts/cell/member",
    "hosts/cell/node.py",
    "hosts/cell/protocol/counter_validation.py",
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
    "wire/holding_scanner.py",
    "wire/keys.py",
    "wire/media.py",
    "wire/messages_scanner.py",
    "wire/prompt_length.py",
    "wire/request_caps.py",
    "wire/request_checks.py",
    "wire/responses_scanner.py",
    "wire/sse.py",
    "wire/transcript_scanner.py",
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


def project_version(root: Path = Path(__file__).parent) -> str:
    """Return the version of a checkout.

    A commit with the tag v1.2.3 has the version 1.2.3. Any other commit has the version that is being prepared,
    `__version__` in the package, with the number of commits since the last tag and the hash: 1.2.4.dev5+g0123abcdef. A
    source archive does not need this function, because hatchling reads its version from PKG-INFO. HEADGATE_VERSION
    replaces the version, for builds from files without the repository.
    """
    if given := os.environ.get("HEADGATE_VERSION"):
        return given
    found = re.search(r'^__version__ = "(.+)"$', (root / "src/headgate/__init__.py").read_text(), re.MULTILINE)
    assert found, "src/headgate/__init__.py has no __version__"
    prepared = found[1].removesuffix(".dev0")
    # Without a .git here, git would describe a repository that only surrounds these files.
    described = _git_describe(root) if (root / ".git").exists() else ""
    match = re.fullmatch(r"(?:v(?P<tag>\d\S*)-(?P<commits>\d+)-g)?(?P<hash>[0-9a-f]+)(?P<dirty>-dirty)?", described)
    if match is None:
        return f"{prepared}.dev0"
    if match["tag"] and match["commits"] == "0" and not match["dirty"]:
        return match["tag"]
    return f"{prepared}.dev{match['commits'] or 0}+g{match['hash']}{'.dirty' if match['dirty'] else ''}"


def _git_describe(root: Path) -> str:
    command = ["git", "describe", "--tags", "--match", "v[0-9]*", "--long", "--always", "--abbrev=10", "--dirty"]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class WheelHook(BuildHookInterface[Any]):
    """Writes the version into the package and adds the extension modules of a compiled wheel."""

    def dependencies(self) -> list[str]:
        """Return the compiler and the libraries that the compiled files import, because mypyc reads their types."""
        if not _is_compilation_requested():
            return []
        project = tomllib.loads((Path(self.root) / "pyproject.toml").read_text())["project"]
        return [*REQUIREMENTS, *project["dependencies"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        name = "headgate/__init__.py"
        source = (Path(self.root) / "src" / name).read_text()
        line = f'__version__ = "{self.metadata.version}"'
        written = self._generated() / name
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(re.sub(r"^__version__ = .+$", line, source, count=1, flags=re.MULTILINE))
        build_data["force_include"][str(written)] = name
        if _is_compilation_requested():
            modules = compiled_modules(Path(self.root) / "src" / "headgate")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            for built in extension_modules(modules):
                build_data["force_include"][str(built)] = str(built.relative_to(modules))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._generated(), ignore_errors=True)

    def _generated(self) -> Path:
        return Path(self.directory) / "generated"


def _is_compilation_requested() -> bool:
    return os.environ.get("HEADGATE_COMPILE", "") not in {"", "0"}


def compiled_modules(source: Path) -> Path:
    """Return the cached directory with the extension modules of the package in `source`. Compile them if necessary."""
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"compiled-{_digest_of_inputs(source)[:16]}"
    with (cache / "compiled.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not folder.exists():
            print("hatch_build: compiling; this takes several minutes", file=sys.stderr)
            _remove_old_builds(cache)
            unfinished = folder.with_suffix(".unfinished")
            compile_packages(source, unfinished)
            unfinished.rename(folder)
        os.utime(folder)
    return folder


def _cache() -> Path:
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HEADGATE_CACHE") or Path(user) / "headgate").resolve()


def _digest_of_inputs(source: Path) -> str:
    digest = hashlib.sha256()
    tools = (sys.version, platform.system(), platform.machine(), *map(installed_version, ("mypy", "setuptools")))
    flags = (os.environ.get("CFLAGS"), sysconfig.get_config_var("CC"), sysconfig.get_config_var("CFLAGS"))
    files = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*.py"))}
    for name, path in {"hatch_build.py": Path(__file__), **files}.items():
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    digest.update(repr((tools, flags)).encode())
    return digest.hexdigest()


def _remove_old_builds(cache: Path) -> None:
    """Remove unfinished builds, and those that were not used for two days."""
    for each in cache.glob("compiled-*"):
        if each.suffix == ".unfinished" or time.time() - each.stat().st_mtime > 2 * 86_400:
            shutil.rmtree(each)


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
        # Warnings of mypyc must not be taken for the directory that this program prints.
        command = [sys.executable, "-c", _MYPYC, *compiled]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)
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
    print(compiled_modules(Path(__file__).parent / "src" / "headgate"))
