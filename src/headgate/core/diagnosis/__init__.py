"""What is wrong, with whom, and what is to be done first? A machine of its own beside the scheduler, of its events."""
