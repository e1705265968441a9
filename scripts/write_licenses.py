"""Collect the licences of third-party code into THIRD-PARTY-LICENSES.txt, which every archive of a release contains.

The file covers the code in the wheels, which is uPlot in the console and the C runtime of mypyc, and the packages in
requirements/base.txt and requirements/image.txt, which the container image contains. The texts come from the packages
installed in .venv.
"""

import json
import re
import sys
from importlib import metadata
from pathlib import Path

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

from scripts.release.requirement_files import Requirement, read_requirements  # noqa: E402

FILE = PROJECT / "THIRD-PARTY-LICENSES.txt"
UPLOT = PROJECT / "src" / "headgate" / "console" / "assets" / "uplot-license.txt"
RULE = "=" * 100
_LEGAL_NAME = re.compile(r"licen[cs]e|copying|notice", re.IGNORECASE)


def main() -> None:
    packages = [*required_packages(), *(each for each in read_requirements("dev.txt") if each.name == "mypy")]
    lines = [f"uPlot {uplot_version()}: MIT"]
    texts: dict[str, list[str]] = {UPLOT.read_text().strip(): [f"uPlot {uplot_version()}"]}
    for each in packages:
        installed = metadata.distribution(each.name)
        assert installed.version == each.version, f"{each.name} {each.version} is not installed; run scripts/setup"
        lines.append(f"{each.name} {each.version}: {license_name(installed)}")
        for name, text in license_texts(installed):
            texts.setdefault(text, []).append(f"{each.name} {each.version} ({name})")
    sections = [f"{RULE}\n{chr(10).join(owners)}\n{RULE}\n\n{text}\n" for text, owners in texts.items()]
    FILE.write_text("\n".join([HEADER, *sorted(lines, key=str.lower), "", *sections]))


HEADER = """\
Licences of third-party software. `just licenses` writes this file.

Headgate's wheels contain uPlot (console) and, if they are compiled, the C runtime of mypy's compiler. The container
image contains the other packages as well. Their licence texts, as installed on Linux, also cover the libraries that
those packages contain. Each text appears once, below the names of the packages that it belongs to.
"""


def required_packages() -> list[Requirement]:
    """Return the packages of the container image, in their versions for the oldest supported Python."""
    found = {each.name: each for lock in ("image.txt", "base.txt") for each in reversed(read_requirements(lock))}
    return [found[name] for name in sorted(found)]


def uplot_version() -> str:
    packages = json.loads((PROJECT / "console" / "package-lock.json").read_text())["packages"]
    return str(packages["node_modules/uplot"]["version"])


def license_name(installed: metadata.Distribution) -> str:
    """Return the licence as an SPDX expression, or as the package describes it."""
    fields = installed.metadata
    stated = fields.get("License-Expression") or fields.get("License") or ""
    if stated and len(stated) < 60 and "\n" not in stated:
        return stated
    named = [each.rpartition(" :: ")[2] for each in fields.get_all("Classifier", []) if each.startswith("License ::")]
    return ", ".join(named) or "see below"


def license_texts(installed: metadata.Distribution) -> list[tuple[str, str]]:
    files = [
        each for each in installed.files or [] if _LEGAL_NAME.search(each.name) and each.suffix not in {".py", ".h"}
    ]
    assert files, f"{installed.name} contains no licence text"
    return [(each.name, each.read_text().strip()) for each in sorted(files)]


if __name__ == "__main__":
    main()
