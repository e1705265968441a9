"""Domain types shared by all layers: immutable values without I/O."""
