"""May it come in? What is checked when a request arrives."""
