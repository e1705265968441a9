"""Traffic from recorded traces, fitted processes and random distributions, as arrivals in chronological order."""
