"""Builds the container image from deploy/Containerfile with Podman."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.release.requirement_files import PROJECT

DEBIAN_BASE = "localhost/headgate-base:bookworm"
PYTHON_VERSION = "3.11"
_SUITE = "bookworm"
_LOCKS = ("base.txt", "image.txt", "build.txt")
_WHEELS = "/mnt"
"""Mount point in the build container. All base images contain it; a new directory would stay in the image."""
PIP_CONF = f"[global]\nno-index = true\nfind-links = {_WHEELS}\n"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
_ONLY_FOR_VENV = ("python3-venv", "python3.11-venv", "python3-pip-whl", "python3-setuptools-whl")


class ImageError(Exception):
    """The image was not built or did not pass a check. The message contains the output of the failed command."""


def podman(*arguments: str | Path, seconds_max: float = 300.0) -> str:
    """Run a Podman command and return its output."""
    try:
        done = subprocess.run(
            ["podman", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False, timeout=seconds_max
        )
    except FileNotFoundError:
        raise ImageError("podman is not installed; on Debian and Ubuntu, install podman and runc or crun") from None
    except subprocess.TimeoutExpired:
        raise ImageError(f"podman {arguments[0]} did not exit within {seconds_max:.0f} s") from None
    if done.returncode != 0:
        raise ImageError(f"podman {arguments[0]} exited with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def version_tag(version: str) -> str:
    """Return a version as an image tag, which cannot contain a plus sign."""
    return version.replace("+", "-")


def build_image(tag: str, version: str, *, base: str | None) -> None:
    """Build the image on the base image of the Containerfile, or on `base`, which must be a local image.

    pip on this machine downloads the wheels, so its configuration applies and does not reach the image. The build
    installs these wheels and checks their hashes again.
    """
    with tempfile.TemporaryDirectory(prefix="headgate-image-") as name:
        wheels, pip_conf = Path(name) / "wheels", Path(name) / "pip.conf"
        _download(wheels)
        pip_conf.write_text(PIP_CONF)
        print(f"image: building {tag}", file=sys.stderr)
        arguments = build_arguments(tag, version=version, base=base, wheels=wheels, pip_conf=pip_conf)
        podman(*arguments, seconds_max=1800)


def build_arguments(tag: str, *, version: str, base: str | None, wheels: Path, pip_conf: Path) -> list[str]:
    """Return the arguments for Podman. Without `--format docker`, the image would have no health check."""
    options = [
        *("--format", "docker", "--file", "deploy/Containerfile", "--tag", tag),
        *("--ignorefile", "deploy/Containerfile.dockerignore"),
        *("--secret", f"id=pip_conf,src={pip_conf}", "--volume", f"{wheels}:{_WHEELS}:ro"),
        *("--build-arg", f"HEADGATE_VERSION={version}"),
    ]
    if base is not None:
        options += ["--build-arg", f"PYTHON={base}", "--pull=never"]
    return ["build", *options, "."]


def _download(wheels: Path) -> None:
    print("image: downloading wheels", file=sys.stderr)
    locks = [word for lock in _LOCKS for word in ("--requirement", f"requirements/{lock}")]
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", PYTHON_VERSION]
    _run([sys.executable, "-m", "pip", "download", *options, "--dest", str(wheels), *locks])


def build_debian_base() -> str:
    """Make a base image with Debian's Python, which replaces the official Python image if no registry is reachable.

    As in the official image, `python` and pip are in /usr/local. Here, /usr/local is a virtual environment.
    """
    print(f"image: installing Debian {_SUITE} with mmdebstrap", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="headgate-image-") as name:
        archive = Path(name) / "base.tar"
        excluded = [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
        _run(
            [
                *("mmdebstrap", "--quiet", "--variant=apt", "--include=ca-certificates,passwd,python3,python3-venv"),
                *excluded,
                "--dpkgopt=path-include=/usr/share/doc/*/copyright",
                '--customize-hook=chroot "$1" python3 -m venv /usr/local',
                f'--customize-hook=chroot "$1" dpkg --purge {" ".join(_ONLY_FOR_VENV)}',
                _SUITE,
                str(archive),
            ]
        )
        podman("import", "--quiet", "--change", f"ENV PATH={_PATH}", archive, DEBIAN_BASE)
    return DEBIAN_BASE


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ImageError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise ImageError(f"{command[0]} exited with status {done.returncode}:\n{done.stdout}{done.stderr}")


def size_mb(image: str) -> float:
    """Return the size of an image including its base image, in units of 1,000,000 bytes."""
    return round(int(podman("image", "inspect", "--format", "{{.Size}}", image)) / 1e6, 1)
