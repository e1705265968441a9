"""Background services of a gateway, such as autoscaling and budget updates. `compose` starts and stops them."""
