"""What do real engines send? Streams as they were recorded, shortened in the middle."""

LLAMACPP_CHAT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],'
    b'"created":1794708372,"id":"chatcmpl-b5iW","model":"smollm2","system_fingerprint":"b0-unknown",'
    b'"object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hello"}}],"created":1794708372,'
    b'"id":"chatcmpl-b5iW","model":"smollm2","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"created":1794708373,"id":"chatcmpl-b5iW",'
    b'"model":"smollm2","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}\n\n'
)
LLAMACPP_CHAT_USAGE = (
    b'data: {"choices":[],"created":1794708373,"id":"chatcmpl-b5iW","model":"smollm2",'
    b'"system_fingerprint":"b0-unknown","object":"chat.completion.chunk","usage":{"completion_tokens":8,'
    b'"prompt_tokens":36,"total_tokens":44,"prompt_tokens_details":{"cached_tokens":35}},"timings":{"cache_n":35,'
    b'"prompt_n":1,"prompt_ms":16.209}}\n\n'
)
LLAMACPP_COMPLETION = (
    b'data: {"choices":[{"text":" the","index":0,"logprobs":null,"finish_reason":null}],"created":1794708373,'
    b'"model":"smollm2","object":"text_completion","id":"chatcmpl-uGM1"}\n\n'
    b'data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}],"created":1794708373,'
    b'"model":"smollm2","object":"text_completion","usage":{"completion_tokens":8,"prompt_tokens":2,'
    b'"total_tokens":10,"prompt_tokens_details":{"cached_tokens":1}},"id":"chatcmpl-uGM1"}\n\n'
)
VLLM_CHAT = (
    b'data: {"id":"chatcmpl-9c8c","object":"chat.completion.chunk","created":1794708766,"model":"smollm2",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":null,"prompt_text":null}\n\n'
    b'data: {"id":"chatcmpl-9c8c","object":"chat.completion.chunk","created":1794708766,"model":"smollm2",'
    b'"choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":"stop","stop_reason":null,'
    b'"token_ids":null}]}\n\n'
)
VLLM_CHAT_USAGE = (
    b'data: {"id":"chatcmpl-9c8c","object":"chat.completion.chunk","created":1794708766,"model":"smollm2",'
    b'"choices":[],"usage":{"prompt_tokens":36,"total_tokens":44,"completion_tokens":8},'
    b'"system_fingerprint":"vllm-0.32.0-17b3e14a"}\n\n'
)
VLLM_CONTINUOUS = (
    b'data: {"id":"chatcmpl-9c8c","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}],'
    b'"usage":{"prompt_tokens":36,"total_tokens":37,"completion_tokens":1,"completion_tokens_details":null}}\n\n'
    b'data: {"id":"chatcmpl-9c8c","choices":[{"index":0,"delta":{"content":","},"finish_reason":null}],'
    b'"usage":{"prompt_tokens":36,"total_tokens":38,"completion_tokens":2,"completion_tokens_details":null}}\n\n'
)
DONE = b"data: [DONE]\n\n"
