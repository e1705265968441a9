"""Fleet of engine processes that the gateway starts on its own host."""
