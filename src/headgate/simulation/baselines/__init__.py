"""What would a simpler gateway do? Stand-ins for the scheduler, to be measured against."""
