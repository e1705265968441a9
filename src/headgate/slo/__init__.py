"""Prometheus rules, Grafana dashboards and SLO reports.

All functions work on plain values, without a clock, files or network access.
"""
