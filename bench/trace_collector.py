"""Trace collector for benchmarks. It accepts every request and discards the body.

python -m bench.trace_collector PORT
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class DiscardHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 The base class uses this name.
        """Discard the message."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), DiscardHandler).serve_forever()
