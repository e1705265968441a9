"""Which endpoints does a DNS name have? See docs/fleets.md."""
