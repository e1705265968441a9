"""Packages the Helm chart. The package depends only on the commit's files and the version of zlib."""

import gzip
import io
import re
import tarfile
from pathlib import Path

CHART = Path("deploy", "helm", "headgate")
_VERSION = re.compile(
    r"(?P<release>\d+\.\d+\.\d+)(?:(?P<phase>a|b|rc)(?P<number>\d+))?(?:\.dev(?P<dev>\d+))?(?P<local>\+\S+)?"
)
_PHASES = {"a": "alpha", "b": "beta", "rc": "rc"}


def chart_version(version: str) -> str:
    """Return the version in the form that Helm requires: 0.2.0-dev.14+g0123abcdef for 0.2.0.dev14+g0123abcdef."""
    parts = _VERSION.fullmatch(version)
    if parts is None:
        raise ValueError(f"{version} has no equivalent in semantic versioning")
    before = [f"{_PHASES[parts['phase']]}.{parts['number']}"] if parts["phase"] else []
    before += [f"dev.{parts['dev']}"] if parts["dev"] else []
    return "-".join([parts["release"], *([".".join(before)] if before else [])]) + (parts["local"] or "")


def package_chart(checkout: Path, output: Path, version: str, *, epoch: int) -> Path:
    """Write the chart with this version to `output`. Its images have the same version."""
    package = output / f"headgate-{chart_version(version)}.tgz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in (checkout / CHART).rglob("*") if path.is_file()):
            content = path.read_bytes()
            if path.name == "Chart.yaml":
                content = _with_version(content.decode(), version).encode()
            entry = tarfile.TarInfo(f"headgate/{path.relative_to(checkout / CHART).as_posix()}")
            entry.size, entry.mode, entry.mtime = len(content), 0o644, epoch
            archive.addfile(entry, io.BytesIO(content))
    with package.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(buffer.getvalue())
    return package


def _with_version(chart: str, version: str) -> str:
    for key, value in (("version", chart_version(version)), ("appVersion", version)):
        chart, replaced = re.subn(rf"^{key}: .*$", f'{key}: "{value}"', chart, flags=re.MULTILINE)
        assert replaced == 1, f"Chart.yaml has {replaced} lines that begin with {key}:"
    return chart
