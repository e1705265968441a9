"""Checks run by `headgate doctor`, one file per subject."""
