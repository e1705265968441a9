"""HTTP edge: turns client requests into tickets and carries out the scheduler's commands for them."""
