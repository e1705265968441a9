"""Streams recorded from real engines, shortened in the middle."""

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
LLAMACPP_TOOL_CALL = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created'
    b'":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-unknown","object":"chat.com'
    b'pletion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"id":"1RZz","type":"'
    b'function","function":{"name":"get_weather","arguments":"{"}}]}}],"created":1794722761,"id":"chatcmpl-6I4'
    b'W","model":"smollm2","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"argumen'
    b'ts":"\\""}}]}}],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-unkn'
    b'own","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"argumen'
    b'ts":"city"}}]}}],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-un'
    b'known","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"argumen'
    b'ts":"\\":"}}]}}],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-unk'
    b'nown","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"argumen'
    b'ts":" \\""}}]}}],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-unk'
    b'nown","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"argumen'
    b'ts":"Paris"}}]}}],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-u'
    b'nknown","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"argumen'
    b'ts":"\\""}}]}}],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-unkn'
    b'own","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"argumen'
    b'ts":"}"}}]}}],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0-unkno'
    b'wn","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":"tool_calls","index":0,"delta":{}}],"created":1794722761,"id":"chatcm'
    b'pl-6I4W","model":"smollm2","system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[],"created":1794722761,"id":"chatcmpl-6I4W","model":"smollm2","system_fingerprint":"b0'
    b'-unknown","object":"chat.completion.chunk","usage":{"completion_tokens":31,"prompt_tokens":395,"total_to'
    b'kens":426,"prompt_tokens_details":{"cached_tokens":394}}}\n\n'
)
LLAMACPP_TOOL_CALL_WHOLE = (
    b'{"choices":[{"finish_reason":"tool_calls","index":0,"message":{"role":"assistant","content":"","tool_cal'
    b'ls":[{"type":"function","function":{"name":"get_weather","arguments":"{\\"city\\": \\"Paris\\"}"},"id":"1RZz'
    b'"}]}}],"created":1794722761,"model":"smollm2","system_fingerprint":"b0-unknown","object":"chat.completio'
    b'n","usage":{"completion_tokens":31,"prompt_tokens":395,"total_tokens":426,"prompt_tokens_details":{"cach'
    b'ed_tokens":394}},"id":"chatcmpl-6I4W"}'
)
"""Non-streaming response to the same request, with the IDs, times and cached token count from the stream."""
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
VLLM_RESPONSE_ANNOUNCED = (
    b'event: response.created\ndata: {"response":{"id":"resp_870a","created_at":1794720095,"incomplete_details":null,'
    b'"instructions":null,"model":"smollm2","object":"response","output":[],"status":"in_progress","usage":null},'
    b'"sequence_number":0,"type":"response.created"}\n\n'
    b'event: response.in_progress\ndata: {"response":{"id":"resp_870a","created_at":1794720095,'
    b'"incomplete_details":null,"instructions":null,"model":"smollm2","object":"response","output":[],'
    b'"status":"in_progress","usage":null},"sequence_number":1,"type":"response.in_progress"}\n\n'
)
VLLM_RESPONSE_OUTPUT = (
    b'event: response.output_item.added\ndata: {"item":{"id":"msg_aee5","content":[],"role":"assistant",'
    b'"status":"in_progress","type":"message","phase":null},"output_index":0,"sequence_number":2,'
    b'"type":"response.output_item.added"}\n\n'
    b'event: response.output_text.delta\ndata: {"content_index":0,"delta":" notifications","item_id":"msg_aee5",'
    b'"logprobs":[],"output_index":0,"sequence_number":3,"type":"response.output_text.delta"}\n\n'
    b'event: response.output_text.delta\ndata: {"content_index":0,"delta":" USS accord struggled","item_id":"msg_aee5",'
    b'"logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}\n\n'
)
VLLM_RESPONSE_END = (
    b'event: response.completed\ndata: {"response":{"id":"resp_870a","created_at":1794720095,'
    b'"incomplete_details":{"reason":"max_output_tokens"},"model":"smollm2","object":"response",'
    b'"output":[{"id":"msg_aee5","content":[{"annotations":[],"text":" notifications USS accord struggled",'
    b'"type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null}],'
    b'"status":"incomplete","usage":{"input_tokens":32,"input_tokens_details":{"cached_tokens":16,'
    b'"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":4,'
    b'"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0},"total_tokens":36}},"sequence_number":5,'
    b'"type":"response.completed"}\n\n'
)
LLAMACPP_RESPONSE = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_J8dQ","object":"response",'
    b'"status":"in_progress"}}\n\n'
    b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{"id":"resp_J8dQ",'
    b'"object":"response","status":"in_progress"}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_1XHP",'
    b'"delta":"Hello"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_J8dQ","object":"response",'
    b'"created_at":1794720098,"status":"completed","model":"smollm2","output":[],"usage":{"input_tokens":32,'
    b'"output_tokens":4,"total_tokens":36,"input_tokens_details":{"cached_tokens":0}}},"timings":{"cache_n":0}}\n\n'
)

LLAMACPP_MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"chatcmpl-5eia","type":"message",'
    b'"role":"assistant","content":[],"model":"smollm2","stop_reason":null,"stop_sequence":null,'
    b'"usage":{"cache_read_input_tokens":18,"input_tokens":1,"output_tokens":0}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
)
LLAMACPP_MESSAGE_DELTAS = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"I"}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"\'m"}}\n\n'
)
LLAMACPP_MESSAGE_END = (
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},'
    b'"usage":{"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
LLAMACPP_MESSAGE = LLAMACPP_MESSAGE_START + LLAMACPP_MESSAGE_DELTAS + LLAMACPP_MESSAGE_END
