"""Code shared by tests and benchmarks: launchers for real components, fakes, builders and the simulated cell."""
