"""Grafana dashboards: panels and their queries."""
