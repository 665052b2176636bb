"""Answers every request with where it runs: the smallest workload that shows a fleet at work."""

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WHERE = f"{os.environ.get('FARMD_NODE', '?')}/{os.environ.get('FARMD_INSTANCE', '?')}"
GREETING = os.environ.get("GREETING", "hello from")


class Hello(BaseHTTPRequestHandler):
    """One answer for every path."""

    def do_GET(self):
        """``hello from web1/hello``."""
        body = f"{GREETING} {WHERE}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """A health check a second is nothing to read."""


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = int(os.environ["FARMD_PORT_HTTP"])
print(f"{WHERE} listens on port {port}", flush=True)
ThreadingHTTPServer(("127.0.0.1", port), Hello).serve_forever()
