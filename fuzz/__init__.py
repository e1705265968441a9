"""What do bytes do that nobody would send on purpose? Targets for atheris, each a function that takes any bytes."""
