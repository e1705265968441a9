"""Code shared by tests and benchmarks: launchers of real parts, fakes, builders and the simulated cell."""
