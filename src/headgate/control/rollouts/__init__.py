"""Rollouts: shift the traffic of a model from one route to another in steps, and revert if the new route is worse."""
