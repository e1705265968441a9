"""What is Headgate? An inference gateway and control plane in front of fleets of engines."""

__version__ = "0.1.0"
