"""What would it take, and how do we know? Calibrating, planning and tuning by simulation."""
