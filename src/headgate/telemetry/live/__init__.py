"""Live state of the gateway for the console."""
