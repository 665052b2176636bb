"""A real API server for tests: etcd and kube-apiserver on loopback, with users of the test's own.

    with Etcd() as etcd, ApiServer(etcd) as server:
        Path(kubeconfig).write_text(server.kubeconfig())

Nothing runs pods: a test that wants one to run writes its status, as the kubelet would. ``admin`` may do all
(a client certificate); ``Users`` are known by tokens and may do what a test grants them.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from functools import cache
from pathlib import Path
from typing import Any, Self

from tests import reaper
from tests.binaries import binary
from tests.ports import free_ports

START_SECONDS = 90.0
STOP_SECONDS = 15.0
TOKENS = {"farm": "token-of-farm", "reader": "token-of-reader", "nobody": "token-of-nobody"}


def pod(name: str, **meta: object) -> dict[str, Any]:
    """A small pod."""
    return {"metadata": {"name": name, **meta}, "spec": {"containers": [{"name": "main", "image": "none"}]}}


class NotStarted(Exception):
    """A server did not become ready; the message holds the end of its log."""


class _Server:
    """A process with a folder of its own."""

    name = ""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"farmd-{self.name}-"))
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        _live.add(self)

    def command(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start it; returns when it answers.

        Raises:
            NotStarted: with the end of the log.
        """
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the process alone."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        reaper.started(self._process.pid, self.folder)

    def await_ready(self) -> None:
        """Return when it answers.

        Raises:
            NotStarted: with the end of the log.
        """
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                self.kill()
                raise NotStarted(f"{self.name} did not become ready:\n{tail}")
            time.sleep(0.05)

    def pause(self) -> None:
        """SIGSTOP: it answers nothing, its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Terminate cleanly; data stay until ``close``."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; data stay until ``close``."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Kill what runs and remove the folder; may be called twice."""
        self.kill()
        _live.discard(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reaper.reaped(process.pid)


class Etcd(_Server):
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
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
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


class ApiServer(_Server):
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

    def ready(self) -> bool:
        """Whether it says so, and has made the namespace of tests."""
        try:
            self.ask("GET", "/readyz")
            self.ask("GET", "/api/v1/namespaces/default")
        except OSError:
            return False
        return True

    def ask(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """An answer to the administrator, decoded; the way in of tests that want to see the world."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": content_type} if data else {}, method=method
        )
        with urllib.request.urlopen(request, timeout=30, context=self._context()) as answer:
            text = answer.read()
        return json.loads(text) if text[:1] == b"{" else text.decode()

    def patch(self, path: str, body: object) -> Any:
        """A merge patch by the administrator."""
        return self.ask("PATCH", path, body, "application/merge-patch+json")

    def kubeconfig(self, user: str = "admin") -> str:
        """A kubeconfig (JSON is YAML) of the administrator or of one of ``TOKENS``."""
        login = {"token": TOKENS[user]} if user != "admin" else {}
        if user == "admin":
            login = {
                "client-certificate": str(self.keys / "admin.crt"),
                "client-key": str(self.keys / "admin.key"),
            }
        cluster = {"server": self.url, "certificate-authority": str(self.keys / "ca.crt")}
        return json.dumps(
            {
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": login}],
            }
        )

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

    @cache  # noqa: B019
    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.keys / "ca.crt")
        context.load_cert_chain(self.keys / "admin.crt", self.keys / "admin.key")
        return context


@cache
def certificates() -> Path:
    """A folder with an authority, a server's and an administrator's certificate, a key for accounts."""
    folder = Path(tempfile.mkdtemp(prefix="farmd-certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    def signed(name: str, subject: str, extension: str) -> None:
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            subject,
        )
        (folder / f"{name}.ext").write_text(extension)
        serial = str(int.from_bytes(os.urandom(8), "big"))
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", serial,
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )  # fmt: skip

    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
        "-subj", "/CN=test-ca", "-days", "2",
    )  # fmt: skip
    signed("server", "/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,DNS:kubernetes.test")
    signed("admin", "/O=system:masters/CN=admin", "extendedKeyUsage=clientAuth")
    openssl("genrsa", "-out", "accounts.key", "2048")
    return folder


_live: weakref.WeakSet[_Server] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_live):
        server.close()
