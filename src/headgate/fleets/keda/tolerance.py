"""Metric value that makes the Kubernetes autoscaler reach the desired replica count.

The autoscaler divides the metric by its target, which is 1, and rounds up: a value of 12 gives 12 replicas. It changes
nothing while the metric is within 10 % of the current replica count: with 20 replicas and a value of 21, it stays at
20. A pool of ten or more replicas could therefore never grow by one. If more endpoints are desired than present, the
scaler therefore reports the smallest number outside the tolerance, which exceeds the desired count by at most 10 % plus
one. If fewer are desired, it reports the desired number. The pool may then keep up to 10 % too many endpoints, which
costs money but violates no objective.

A cluster in which a ScaledObject can set the tolerance to zero (Kubernetes 1.35, or 1.33 with a feature gate) does not
need this. In that case, the trigger sets `tolerancePercent`, and the scaler reports the desired number.
"""

TOLERANCE_PERCENT = 10
"""Default tolerance of a Kubernetes cluster."""


def metric_value(desired: int, *, current: int, tolerance_percent: int = TOLERANCE_PERCENT) -> int:
    """Returns the metric value to report. `current` includes ready and starting endpoints."""
    overlooked_max = current * (100 + tolerance_percent) // 100
    return overlooked_max + 1 if current < desired <= overlooked_max else desired
