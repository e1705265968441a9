"""Routing: the scheduler's view of the endpoints, and the choice among them."""
