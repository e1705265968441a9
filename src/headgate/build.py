"""Which build is running. A compiled build contains extension modules for some packages (see hatch_build.py)."""

from headgate.model import units

BUILD = "pure Python" if str(units.__file__).endswith(".py") else "compiled"
