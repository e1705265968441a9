"""Setting trials: alternate one setting between two values on live traffic, and keep the better one."""
