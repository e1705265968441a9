"""A fleet of processes that the gateway starts on its own host."""
