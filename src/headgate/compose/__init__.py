"""Which real parts are put together, and how? The only room that turns configuration into things that run."""
