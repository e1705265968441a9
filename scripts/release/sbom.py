"""Software bill of materials of a release, as a CycloneDX 1.6 document.

It lists the third-party code in the wheels, and the packages that Headgate and its extras install, as pinned in
requirements/base.txt and requirements/image.txt.
"""

import re
import uuid
from pathlib import Path
from typing import Any

from scripts.release.requirement_files import Requirement, read_requirements

LICENSES = "THIRD-PARTY-LICENSES.txt"
BUNDLED = {"uPlot": ("npm", "console"), "mypy": ("pypi", "C runtime in compiled wheels")}
"""Third-party code in the wheels, with its kind of package and its place."""
_SPDX_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*")
_NAMESPACE = uuid.UUID("7f3c9f5e-6d3b-4b0e-9c55-7c8f4b7f6a10")
"""Namespace of serial numbers, which depend only on the version and the commit."""


def bill_of_materials(checkout: Path, version: str, *, commit: str, timestamp: str) -> dict[str, Any]:
    licenses = licenses_by_name(checkout)
    base = read_requirements("base.txt", checkout)
    required = {each.name for each in base}
    extras = [each for each in read_requirements("image.txt", checkout) if each.name not in required]
    bundled = [_bundled_component(name, licenses) for name in BUNDLED]
    packages = [
        *(_component(each, "required", licenses) for each in base),
        *(_component(each, "optional", licenses) for each in extras),
    ]
    headgate = {**_identity("headgate", version, "pypi"), "type": "application", **_license("Apache-2.0")}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{version} {commit}')}",
        "version": 1,
        "metadata": {"timestamp": timestamp, "component": {**headgate, "components": bundled}},
        "components": packages,
        "dependencies": _dependencies(headgate["bom-ref"], [*base, *extras]),
    }


def licenses_by_name(checkout: Path) -> dict[str, tuple[str, str]]:
    """Return version and licence of each package in the list at the top of the licence file."""
    head = (checkout / LICENSES).read_text().partition("\n====")[0]
    found = re.findall(r"^(\S+) (\S+): (.+)$", head, re.MULTILINE)
    return {name: (version, license_name) for name, version, license_name in found}


def _identity(name: str, version: str, kind: str) -> dict[str, Any]:
    address = f"pkg:{kind}/{name.lower()}@{version.replace('+', '%2B')}"
    return {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}


def _license(stated: str) -> dict[str, Any]:
    is_expression = _SPDX_EXPRESSION.fullmatch(stated) is not None
    return {"licenses": [{"expression": stated} if is_expression else {"license": {"name": stated}}]}


def _bundled_component(name: str, licenses: dict[str, tuple[str, str]]) -> dict[str, Any]:
    kind, place = BUNDLED[name]
    version, license_name = licenses[name]
    return {**_identity(name, version, kind), **_license(license_name), "description": f"Bundled: {place}."}


def _component(package: Requirement, scope: str, licenses: dict[str, tuple[str, str]]) -> dict[str, Any]:
    _, license_name = licenses[package.name]
    found = {
        **_identity(package.name, package.version, "pypi"),
        "scope": scope,
        **_license(license_name),
        "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
    }
    if package.marker:
        found["properties"] = [{"name": "headgate:marker", "value": package.marker}]
    return found


def _dependencies(root: str, packages: list[Requirement]) -> list[dict[str, Any]]:
    def references(chosen: list[Requirement]) -> list[str]:
        return sorted(str(_identity(each.name, each.version, "pypi")["bom-ref"]) for each in chosen)

    rows = [{"ref": root, "dependsOn": references([each for each in packages if each.is_direct])}]
    for package in packages:
        needed = [each for each in packages if package.name in each.required_by]
        rows += [{"ref": reference, "dependsOn": references(needed)} for reference in references([package])]
    return rows
