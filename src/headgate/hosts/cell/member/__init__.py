"""A gateway of a cell: it owns its requests and asks an authority about them."""
