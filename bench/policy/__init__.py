"""Does the policy pay? Experiments that judge the scheduler under virtual time: `python -m bench.policy --help`."""
