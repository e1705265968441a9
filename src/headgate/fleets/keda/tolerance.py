"""Which figure makes the autoscaler of Kubernetes arrive at what is wanted?

It divides the figure by the target, which is 1, and rounds up: told 12 it wants 12. But it changes nothing while the
figure is within a tenth of how many there are: told 21 where there are 20, it stays at 20. One endpoint more would then
never come to a pool of ten or more. So where more are wanted than there are, it is told the least number that it does
not overlook, which is at most a tenth and one too many. Where fewer are wanted it is told the truth: up to a tenth too
many then stay, which costs money and no promise, whereas one too few would.

A cluster that lets a ScaledObject set the tolerance to zero (Kubernetes 1.35, or 1.33 by a feature gate) needs none of
this: the trigger says so (`tolerancePercent`), and the figure is what is wanted.
"""

TOLERANCE_PERCENT = 10
"""What a cluster has unless somebody changed it."""


def figure(wanted: int, *, present: int, tolerance_percent: int = TOLERANCE_PERCENT) -> int:
    """What to tell, where `present` endpoints are there or starting."""
    overlooked_max = present * (100 + tolerance_percent) // 100
    return overlooked_max + 1 if present < wanted <= overlooked_max else wanted
