"""What became of requests, kept longer than they live."""
