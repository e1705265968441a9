"""Does a configuration fit reality? One file per thing that is compared with it."""
