"""Experiments that measure the scheduling policy in virtual time. Run `python -m bench.policy --help`."""
