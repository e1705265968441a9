"""Hosts: deliver events to the scheduler and carry out its commands."""
