"""What is told to those who watch? Observers of events and commands: metrics, logs, traces."""
