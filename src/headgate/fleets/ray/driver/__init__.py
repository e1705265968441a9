"""Ray driver program. It has its own directory, because the program's directory comes first on its import path."""
