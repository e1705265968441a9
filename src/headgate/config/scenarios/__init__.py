"""What is to be simulated? A scenario's file, read with the same care and the same words as the gateway's own."""
