"""Compares the autoscaler with simpler autoscalers on fourteen days of recorded traffic."""
