"""Background services of a gateway: they coordinate ports on a schedule and are started and stopped by compose."""
