"""A real API server for tests: etcd and kube-apiserver on loopback, with users of the test's own.

    with Etcd() as etcd, ApiServer(etcd) as server:
        Path(kubeconfig).write_text(server.kubeconfig())

Nothing runs pods: a test that wants one to run writes its status, as the kubelet would. ``admin`` may do all
(a client certificate); ``Users`` are known by tokens and may do what a test grants them.
"""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.binaries import binary
from tests.kept_connections import KeptConnections
from tests.kubeconfigs import kubeconfig
from tests.kubernetes_certificates import certificates
from tests.ports import free_ports
from tests.server_process import ServerProcess

USERS = ("farm", "reader", "spaces", "nobody")
TOKENS = {user: f"token-of-{user}" for user in USERS}


def pod(name: str, **meta: object) -> dict[str, Any]:
    """A small pod."""
    return {"metadata": {"name": name, **meta}, "spec": {"containers": [{"name": "main", "image": "none"}]}}


class Etcd(ServerProcess):
    """etcd without fsync; its data survive ``stop`` and ``kill``."""

    name = "etcd"

    def __init__(self) -> None:
        super().__init__()
        client, peer = free_ports(2)
        self.url, self._peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"

    def command(self) -> list[str]:
        """Its command line."""
        return [
            str(binary("etcd")),
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={self._peer}",
            "--unsafe-no-fsync",
        ]

    def ready(self) -> bool:
        """Whether it has a leader."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def compact(self) -> None:
        """Forget all versions but the newest."""
        revision = self._ask("/v3/kv/range", {"key": base64.b64encode(b"x").decode()})["header"]["revision"]
        self._ask("/v3/kv/compaction", {"revision": revision, "physical": True})

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=self.start_seconds) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def save(self) -> Path:
        """A copy of a stopped server's data."""
        assert self._process is None
        saved = self.folder / "saved"
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(self.folder / "data", saved)
        return saved

    def put_back(self, saved: Path) -> None:
        """Restore a copy while the server is stopped."""
        assert self._process is None
        shutil.rmtree(self.folder / "data")
        shutil.copytree(saved, self.folder / "data")


class Api(ABC):
    """An API server, asked by its administrator: the way in of tests that want to see the world."""

    url: str
    port: int
    headers: Mapping[str, str] = {}

    @abstractmethod
    def login(self) -> ssl.SSLContext:
        """The administrator's certificate."""

    @abstractmethod
    def kubeconfig(self, user: str = "admin") -> str:
        """A kubeconfig (JSON is YAML) of the administrator or of one of ``USERS``."""

    def ask(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """An answer to the administrator, decoded; the way in of tests that want to see the world."""
        if method == "GET":
            text = self._kept.get(path, self.headers)
        else:
            text = self._told(method, path, body, content_type)
        return json.loads(text) if text[:1] == b"{" else text.decode()

    def _told(self, method: str, path: str, body: object, content_type: str) -> bytes:
        # Over a connection of its own: on one that breaks, nobody knows whether it was done.
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.headers, **({"Content-Type": content_type} if data else {})}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=180, context=self.login()) as answer:
            text: bytes = answer.read()
        return text

    @cached_property
    def _kept(self) -> KeptConnections:
        return KeptConnections(self.url, self.login)

    def close(self) -> None:
        """Close the connections that looks left open."""
        self._kept.close()

    def patch(self, path: str, body: object) -> Any:
        """A merge patch by the administrator."""
        return self.ask("PATCH", path, body, "application/merge-patch+json")

    def namespace(self, name: str) -> str:
        """A new namespace."""
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def grant(self, user: str, *rules: dict[str, list[str]]) -> None:
        """Have a user of ``TOKENS`` do these things in all namespaces, and nothing else."""
        group = "rbac.authorization.k8s.io"
        base = f"/apis/{group}/v1"
        role = {"metadata": {"name": f"test-{user}"}, "rules": list(rules)}
        try:
            self.ask("POST", f"{base}/clusterroles", role)
        except urllib.error.HTTPError as error:
            error.close()
            self.ask("PUT", f"{base}/clusterroles/test-{user}", role)
            return
        subject = {"kind": "User", "name": user, "apiGroup": group}
        reference = {"kind": "ClusterRole", "name": f"test-{user}", "apiGroup": group}
        binding = {"metadata": {"name": f"test-{user}"}, "subjects": [subject], "roleRef": reference}
        self.ask("POST", f"{base}/clusterrolebindings", binding)


class ApiServer(ServerProcess, Api):
    """kube-apiserver on one etcd, several may share it; ``flags`` are further arguments."""

    name = "kube-apiserver"

    def __init__(self, etcd: Etcd, *flags: str) -> None:
        super().__init__()
        self.etcd, self.flags = etcd, flags
        (self.port,) = free_ports(1)
        self.url = f"https://127.0.0.1:{self.port}"
        self.keys = certificates()
        (self.folder / "tokens.csv").write_text(
            "".join(f"{token},{user},{user}\n" for user, token in TOKENS.items())
        )

    def command(self) -> list[str]:
        """Its command line."""
        return [
            str(binary("kube-apiserver")),
            f"--etcd-servers={self.etcd.url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={self.keys / 'server.crt'}",
            f"--tls-private-key-file={self.keys / 'server.key'}",
            f"--client-ca-file={self.keys / 'ca.crt'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.keys / 'accounts.key'}",
            f"--service-account-signing-key-file={self.keys / 'accounts.key'}",
            "--disable-admission-plugins=ServiceAccount",
            *self.flags,
        ]

    def close(self) -> None:
        """End the server and all connections to it."""
        Api.close(self)
        super().close()

    def ready(self) -> bool:
        """Whether it says so, and has made the namespace of tests."""
        try:
            self.ask("GET", "/readyz")
            self.ask("GET", "/api/v1/namespaces/default")
        except OSError:
            return False
        return True

    def kubeconfig(self, user: str = "admin") -> str:
        """A kubeconfig (JSON is YAML) of the administrator or of one of ``TOKENS``."""
        login = {"token": TOKENS[user]} if user != "admin" else {}
        if user == "admin":
            login = {
                "client-certificate": str(self.keys / "admin.crt"),
                "client-key": str(self.keys / "admin.key"),
            }
        cluster = {"server": self.url, "certificate-authority": str(self.keys / "ca.crt")}
        return kubeconfig(cluster, login)

    @cache  # noqa: B019
    def login(self) -> ssl.SSLContext:
        """The administrator's certificate."""
        context = ssl.create_default_context(cafile=self.keys / "ca.crt")
        context.load_cert_chain(self.keys / "admin.crt", self.keys / "admin.key")
        return context
