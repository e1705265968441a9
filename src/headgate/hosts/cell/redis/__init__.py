"""A cell's store on Redis or Valkey."""
