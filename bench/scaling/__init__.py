"""Does the autoscaler pay? Fourteen real days before it and before simpler ways of scaling."""
