"""Prometheus rules, Grafana dashboards and SLO reports.

Everything here works on plain values: no clock, no files, no network.
"""
