"""What would a fleet do? An engine that behaves like vLLM without a GPU, as pure code and behind HTTP."""
