"""What would happen? The serving scheduler under virtual time, before simulated engines and simulated callers."""
