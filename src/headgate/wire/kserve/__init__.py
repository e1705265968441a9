"""KServe's protocol (Open Inference Protocol), including Triton's generate extension."""
