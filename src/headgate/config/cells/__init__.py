"""The file `cells.yaml`, which lists the cells of a fleet."""
