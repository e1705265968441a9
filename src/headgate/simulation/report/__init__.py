"""Results of a run by class and tenant, as text, JSON and an HTML page with charts."""
