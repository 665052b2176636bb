"""A node whose kubelet answers for logs alone: the API server asks it as any other."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from farmd.kubernetes.objects import Resource
from tests.kubernetes_certificates import certificates
from tests.kubernetes_server import ApiServer

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)


@contextmanager
def node(
    server: ApiServer, name: str, logs: Mapping[str, str]
) -> Iterator[list[tuple[str, Mapping[str, str]]]]:
    """A node that has these logs, by ``<pod>/<container>``; the requests that its kubelet got."""
    asked: list[tuple[str, Mapping[str, str]]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            place = "/".join(parts.path.split("/")[3:])
            asked.append((place, {key: value[0] for key, value in parse_qs(parts.query).items()}))
            text = logs.get(place, "").encode()
            self.send_response(200 if place in logs else 404)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    kubelet = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates() / "server.crt", certificates() / "server.key")
    kubelet.socket = context.wrap_socket(kubelet.socket, server_side=True)
    threading.Thread(target=kubelet.serve_forever, daemon=True).start()
    server.ask("POST", NODES.path(), {"metadata": {"name": name}})
    where = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    endpoint = {"kubeletEndpoint": {"Port": kubelet.server_address[1]}}
    server.patch(
        NODES.path(name=name, subresource="status"), {"status": {**where, "daemonEndpoints": endpoint}}
    )
    try:
        yield asked
    finally:
        kubelet.shutdown()
        kubelet.server_close()
        server.ask("DELETE", NODES.path(name=name))
