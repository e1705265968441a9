"""The live state that the console shows."""
