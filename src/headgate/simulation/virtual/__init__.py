"""The production scheduler in virtual time, with simulated engines and simulated clients."""
