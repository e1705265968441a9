"""What do the bytes mean? The OpenAI shapes and event streams: bytes in, bytes out, no I/O."""
