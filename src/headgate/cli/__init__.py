"""What can a person type? One file per verb; data goes to stdout, everything else to stderr."""
