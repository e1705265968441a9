"""What verbs read from the command line and the environment, and send to a gateway."""
