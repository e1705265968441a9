"""Build the container image with Podman, and check it (docs/project/releasing.md).

Nothing is uploaded. With --check, the last line is a JSON object with figures.
"""

import argparse
import json
import signal
import sys

from hatch_build import project_version
from scripts.image.build import ImageError, build_debian_base, build_image, size_mb, version_tag
from scripts.image.check import FIRST_ANSWER_S_MAX, check_image


def main() -> int:
    parser = argparse.ArgumentParser(prog="just image", description=str(__doc__).partition("\n")[0])
    base = parser.add_mutually_exclusive_group()
    base.add_argument("--base", metavar="IMAGE", help="Local base image (default: that of the Containerfile).")
    base.add_argument(
        "--base-from-debian", action="store_true", help="Make a base image with mmdebstrap; needs no registry."
    )
    parser.add_argument("--tag", metavar="NAME", help="Name of the image (default: headgate:VERSION).")
    parser.add_argument("--check", action="store_true", help="Run the image and check it.")
    arguments = parser.parse_args()
    version = project_version()
    tag = arguments.tag or f"localhost/headgate:{version_tag(version)}"
    # Without this, SIGTERM would leave containers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        local_base = build_debian_base() if arguments.base_from_debian else arguments.base
        build_image(tag, version, base=local_base)
        print(f"image: built {tag} ({size_mb(tag)} MB with its base image); nothing was uploaded")
        if not arguments.check:
            return 0
        figures = check_image(tag, version)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures))
    first_answer_s = figures["first_answer_s"]
    in_time = first_answer_s is not None and first_answer_s <= FIRST_ANSWER_S_MAX
    return 0 if figures["failed"] == 0 and in_time else 1


if __name__ == "__main__":
    sys.exit(main())
