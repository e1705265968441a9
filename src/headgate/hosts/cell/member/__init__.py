"""Member: a gateway in a cell. It owns its requests and delegates decisions to an authority."""
