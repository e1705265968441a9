"""Configuration: reads one YAML file and produces validated settings and a policy."""
