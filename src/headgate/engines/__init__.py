"""How do we talk to engines? The HTTP side, one dialect per kind of engine, and the watch over all of them."""
