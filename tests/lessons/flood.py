"""Load generator that floods a gateway from a separate process.

    python -m tests.lessons.flood http://127.0.0.1:8080 SECONDS BIG_BODIES_PER_SECOND

Several threads send small invalid requests as fast as they get responses, and one thread sends bodies of tens of
megabytes at a fixed rate. The program prints the number of responses per status as JSON.
"""

import http.client
import json
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

MIB = 1024 * 1024
WRONG_THREADS = 3
CHAT = "/v1/chat/completions"

Request = tuple[str, str, bytes]


def wrong_requests() -> list[Request]:
    return [
        ("POST", CHAT, b"{"),
        ("POST", CHAT, b"[]"),
        ("POST", CHAT, b'{"model": "no-such-model", "messages": [{"role": "user", "content": "hi"}]}'),
        ("POST", CHAT, b'{"model": "m", "messages": "' + b"x" * 2000 + b'"}'),
        ("GET", CHAT, b""),
        ("POST", "/v1/nothing/here", b"{}"),
        ("POST", CHAT, b"[" * 5000),
    ]


def text_body(mib: int, model: str = "no-such-model") -> bytes:
    """Body with one long message, such as a document in the prompt."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "word " * (mib * MIB // 5)}]}).encode()


def image_body(mib: int, model: str = "no-such-model") -> bytes:
    """Body with an inline image."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (mib * MIB // 4)}}
    content = [{"type": "text", "text": "What is this?"}, picture]
    return json.dumps({"model": model, "messages": [{"role": "user", "content": content}]}).encode()


def many_turns_body(mib: int, model: str = "no-such-model") -> bytes:
    """Body with hundreds of thousands of tiny messages, which maximises the JSON structure for its size."""
    turn = {"role": "user", "content": 'a"[b'}
    turns = ", ".join([json.dumps(turn)] * (mib * MIB // 40))
    return f'{{"model": {json.dumps(model)}, "messages": [{turns}]}}'.encode()


def send(connection: http.client.HTTPConnection, request: Request) -> str:
    """Send a request and return its status or the name of the error."""
    try:
        connection.request(*request)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return type(error).__name__
    return str(answer.status)


def main(url: str, seconds: float, big_per_s: float) -> None:
    where = urlsplit(url).netloc
    bodies = [many_turns_body(8), text_body(24), image_body(24)] if big_per_s else []
    until = time.monotonic() + seconds
    small: Counter[str] = Counter()
    big: Counter[str] = Counter()

    def send_wrong() -> None:
        connection = http.client.HTTPConnection(where, timeout=30)
        requests = wrong_requests()
        while time.monotonic() < until:
            small[send(connection, requests[small.total() % len(requests)])] += 1
        connection.close()

    def send_big() -> None:
        while time.monotonic() < until:
            started = time.monotonic()
            connection = http.client.HTTPConnection(where, timeout=30)
            big[send(connection, ("POST", CHAT, bodies[big.total() % 3]))] += 1
            connection.close()
            time.sleep(max(0.0, 1 / big_per_s - (time.monotonic() - started)))

    threads = [threading.Thread(target=send_wrong) for _ in range(WRONG_THREADS)]
    if big_per_s:
        threads.append(threading.Thread(target=send_big))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"small": small, "big": big}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
