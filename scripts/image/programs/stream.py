"""Requests a streamed response and prints its request ID and events: `stream.py URL MAX_TOKENS [CA]`."""

import json
import ssl
import sys
import urllib.request


def main() -> None:
    url, max_tokens, *authority = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority[0]) if authority else None
    body = {
        "model": "smollm2",
        "stream": True,
        "max_tokens": int(max_tokens),
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Say hello."}],
    }
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())  # noqa: S310 - an address of the check
    with urllib.request.urlopen(request, timeout=60, context=context) as response:  # noqa: S310 - as above
        print("request", response.headers["x-request-id"], flush=True)
        for line in response:
            print(line.decode().rstrip("\n"), flush=True)


if __name__ == "__main__":
    main()
