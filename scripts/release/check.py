"""Checks of release files: metadata, SBOM, checksums, and the quickstart of the documentation from each of them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.release.build import CHECKSUMS
from scripts.release.provenance import sha256
from scripts.release.requirement_files import PROJECT

QUICKSTART = PROJECT / "docs" / "tutorials" / "quickstart.md"
FIRST_ANSWER_S_MAX = 60.0
QUICKSTART_S_MAX = 300
_TOOLS = PROJECT / "build" / "release-tools"
_PYTHONS = ("3.11", "3.12", "3.13")
_STREAMED_TEXT = re.compile(r'^data: .*"content":"[^"]')
_VALIDATE_SBOM = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(f"{sys.argv[1]}: {errors}" if errors else 0)
"""


def check_metadata(folder: Path) -> None:
    """Check the archives with twine and the SBOM against the schema of CycloneDX. Install both tools if necessary."""
    python = _tools_python()
    archives = [path for path in sorted(folder.iterdir()) if path.suffix in {".gz", ".whl"}]
    subprocess.run([python, "-m", "twine", "check", "--strict", *archives], check=True, stdout=sys.stderr)
    [materials] = folder.glob("*.cdx.json")
    subprocess.run([python, "-c", _VALIDATE_SBOM, materials], check=True)


def _tools_python() -> Path:
    """Return the interpreter of an environment with the packages of requirements/release.txt."""
    lock, python = PROJECT / "requirements" / "release.txt", _TOOLS / "bin" / "python"
    stamp = _TOOLS / "requirements.sha256"
    if not stamp.exists() or stamp.read_text() != sha256(lock):
        subprocess.run([sys.executable, "-m", "venv", "--clear", _TOOLS], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        subprocess.run([*install, "--requirement", lock], check=True, stdout=sys.stderr)
        stamp.write_text(sha256(lock))
    return python


def differing_files(left: Path, right: Path) -> list[str]:
    """Return the names of files that exist in only one directory or differ between the two."""
    names = {path.name for folder in (left, right) for path in folder.iterdir()}
    pairs = {name: (left / name, right / name) for name in names}
    return sorted(
        name
        for name, (one, other) in pairs.items()
        if not (one.exists() and other.exists() and one.read_bytes() == other.read_bytes())
    )


def interpreters() -> dict[str, Path]:
    """Return the supported Python versions that are installed, from the PATH or pyenv."""
    found: dict[str, Path] = {}
    for version in _PYTHONS:
        for python in _candidates(version):
            run = subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False)
            if run.returncode == 0:
                found[version] = python
                break
    return found


def _candidates(version: str) -> Iterator[Path]:
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    if shutil.which("pyenv"):
        run = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False)
        for name in run.stdout.split():
            if name.startswith(f"{version}."):
                prefix = subprocess.run(["pyenv", "prefix", name], capture_output=True, text=True, check=True)
                yield Path(prefix.stdout.strip()) / "bin" / f"python{version}"


def installs_on(artifact: Path, version: str) -> bool:
    """Return whether a file of this name can be installed on this Python version."""
    tag = re.search(r"-cp(\d)(\d+)-[^-]+-[^-]+\.whl$", artifact.name)
    return tag is None or f"{tag[1]}.{tag[2]}" == version


def first_answer_seconds(artifact: Path, python: Path) -> float:
    """Run steps 1 to 5 of the quickstart and return the seconds from the empty directory to the first streamed text."""
    with tempfile.TemporaryDirectory(prefix="headgate-quickstart-") as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").symlink_to(python)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HEADGATE_", "PYTHON"))}
        environment = {**inherited, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        environment.pop("VIRTUAL_ENV", None)
        started = time.monotonic()
        install, rest = quickstart_scripts(artifact)
        # `timeout` also stops the children of the shell.
        limited = ["timeout", "--kill-after=5", str(QUICKSTART_S_MAX)]
        command = [*limited, "bash", "-c", install]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)
        command = [*limited, *_own_network(), "bash", "-c", rest]
        return _seconds_to_first_text(command, folder, environment, started)


def quickstart_scripts(artifact: Path) -> tuple[str, str]:
    """Return the commands of step 1, which installs this file, and those of steps 2 to 5, which need no network."""
    steps = re.split(r"^## ", QUICKSTART.read_text(), flags=re.MULTILINE)[1:6]
    commands = ["".join(re.findall(r"```bash\n(.*?)```", step, re.DOTALL)) for step in steps]
    install = commands[0].replace("pip install ../headgate\n", f"pip install --quiet '{artifact}'\n")
    assert str(artifact) in install, "step 1 of the quickstart does not install ../headgate"
    rest = (
        "".join(commands[1:])
        .replace("headgate init", "until headgate init")
        .replace(":8081\n", ":8081; do sleep 0.1; done\n", 1)
    )
    return f"set -e\n{install}", f"set -e\ncd first-gateway\n. .venv/bin/activate\n{rest}kill $(jobs -p); wait\n"


def _own_network() -> list[str]:
    """Return a command prefix for a network namespace, in which the ports of the quickstart are free."""
    unshare = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    prefix = [*unshare, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    works = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if works else []


def _seconds_to_first_text(command: list[str], folder: Path, environment: dict[str, str], started: float) -> float:
    first: float | None = None
    shown: list[str] = []
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown.append(line)
            if first is None and _STREAMED_TEXT.match(line):
                first = time.monotonic() - started
    if process.returncode != 0 or first is None or "data: [DONE]\n" not in shown:
        raise RuntimeError(f"the quickstart failed with exit status {process.returncode}:\n{''.join(shown)}")
    return first


def check_sums(folder: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", CHECKSUMS], cwd=folder, check=True)
