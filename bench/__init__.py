"""What do the gateway's figures come from? Two benchmarks and their instruments; see docs/performance.md."""
