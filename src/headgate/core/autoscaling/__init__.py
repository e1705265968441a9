"""Autoscaling: demand measurement, forecasts, cold start tracking and the desired replica count of each pool."""
