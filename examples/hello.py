"""An HTTP server that answers every request with its node and instance: the smallest useful workload."""

import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WHERE = f"{os.environ.get('FARMD_NODE', '?')}/{os.environ.get('FARMD_INSTANCE', '?')}"
GREETING = os.environ.get("GREETING", "hello from")


class Hello(BaseHTTPRequestHandler):
    """Gives the same answer on every path."""

    timeout = 5  # a client that is silent does not keep the server from its end

    def do_GET(self):
        """Answer ``hello from web1/hello``."""
        body = f"{GREETING} {WHERE}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Write no line for each health check."""


class Server(ThreadingHTTPServer):
    """Finishes the requests under way before it ends."""

    daemon_threads = False


port = int(os.environ["FARMD_PORT_HTTP"])
print(f"{WHERE} listens on port {port}", flush=True)
with Server(("127.0.0.1", port), Hello) as server:
    # An exception out of the handler of a signal would cut off the request that has just begun.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.1)
