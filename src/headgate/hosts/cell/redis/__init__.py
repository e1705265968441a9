"""The store of a cell on Redis or Valkey."""
