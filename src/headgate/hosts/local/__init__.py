"""Host that runs the scheduler inside one gateway process, without other services."""
