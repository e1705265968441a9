"""Minimal program that a fleet accepts as an engine.

    stub_engine.py PORT [--loads S] [--crashes-after S] [--spawns FILE] [--ignores-sigterm] [--says TEXT]

It listens immediately. Loading begins with the first request; the program returns 503 while it is loading and 200
afterwards. With `--spawns` it starts a child process that sleeps, and writes its pid to the file.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--loads", type=float, default=0.0)
    parser.add_argument("--crashes-after", type=float)
    parser.add_argument("--spawns", type=Path)
    parser.add_argument("--ignores-sigterm", action="store_true")
    parser.add_argument("--says", default="")
    args = parser.parse_args()
    print(f"{args.says} on {args.port}", flush=True)
    if args.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.spawns is not None:
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        args.spawns.write_text(str(child.pid))
    if args.crashes_after is not None:
        threading.Timer(args.crashes_after, os._exit, [3]).start()
    asked_at: list[float] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Loading begins with the first request, so that a slow client also sees the loading state.
            asked_at.append(time.monotonic())
            self.send_response(200 if asked_at[-1] - asked_at[0] >= args.loads else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", args.port), Answers).serve_forever()


if __name__ == "__main__":
    main()
