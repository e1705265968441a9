"""What traffic comes? Recorded traces, fitted processes and plain chance, all as arrivals in the order of time."""
