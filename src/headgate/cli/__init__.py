"""Command-line verbs, one file each. Data goes to stdout, everything else to stderr."""
