"""Fuzz targets for atheris. Each target is a function that accepts arbitrary bytes."""
