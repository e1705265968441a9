"""Headgate, an inference gateway and control plane in front of fleets of engines."""

# The version that is being prepared. Wheels contain their actual version instead (hatch_build.py).
__version__ = "0.1.0.dev0"
