"""Time spent by requests in each stage."""
