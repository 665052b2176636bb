"""A real registry of images for tests: Debian's ``docker-registry`` on loopback, with images made here."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests import reaper
from tests.binaries import binary
from tests.ports import free_ports

START_SECONDS = 30.0
USER, PASSWORD = "ada", "hush:hush"
# What `htpasswd -nbB ada hush:hush` prints.
_HTPASSWD = "ada:$2y$05$abcdefghijklmnopqrstuueZPXIquOolLoZnV5UqUjtfYVdchOKxy\n"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Registry:
    """The registry in a folder, as a context manager; what was pushed survives ``restart``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """Its name in references."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Registry:
        self.restart()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def restart(self, auth: Mapping[str, Any] | None = None) -> None:
        """Start it, or start it anew, with another way to ask for logins."""
        self.kill()
        config: dict[str, Any] = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}},
            "http": {"addr": self.host},
        }
        if auth:
            config["auth"] = auth
        path = self._folder / "registry.yml"
        path.write_text(json.dumps(config))
        with (self._folder / "registry.log").open("ab") as log:
            command = [binary("docker-registry"), "serve", path]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        reaper.started(self._process.pid)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert time.monotonic() < deadline, (self._folder / "registry.log").read_text()[-400:]
            time.sleep(0.02)

    def with_passwords(self) -> None:
        """Ask for a user and a password from now on."""
        (self._folder / "htpasswd").write_text(_HTPASSWD)
        self.restart({"htpasswd": {"realm": "test", "path": str(self._folder / "htpasswd")}})

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            reaper.reaped(process.pid)

    def _answers(self) -> bool:
        try:
            return self._ask("GET", "/v2/").status in (200, 401)
        except OSError:
            return False

    def push(self, name: str, tag: str, layer: bytes, platforms: Sequence[str] = ("amd64",)) -> str:
        """Push an image of one layer, a tar archive, as an index of platforms; the digest of the index."""
        packed = gzip.compress(layer, 1, mtime=0)
        entries = []
        for platform in platforms:
            config = {
                "architecture": platform,
                "os": "linux",
                # Images of two names differ, so that no engine takes one for the other.
                "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"], "Labels": {"name": name}},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
            manifest = {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": self._blob(name, json.dumps(config).encode(), _CONFIG),
                "layers": [self._blob(name, packed, _LAYER)],
            }
            body = json.dumps(manifest).encode()
            self._manifest(name, _digest(body), body, _MANIFEST)
            described = {"mediaType": _MANIFEST, "size": len(body), "digest": _digest(body)}
            entries.append(described | {"platform": {"architecture": platform, "os": "linux"}})
        body = json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries}).encode()
        self._manifest(name, tag, body, _INDEX)
        return _digest(body)

    def _manifest(self, name: str, reference: str, body: bytes, kind: str) -> None:
        done = self._ask("PUT", f"/v2/{name}/manifests/{reference}", body, {"Content-Type": kind})
        assert done.status == 201, done.status

    def _blob(self, name: str, content: bytes, kind: str) -> dict[str, object]:
        begun = self._ask("POST", f"/v2/{name}/blobs/uploads/")
        where = urlsplit(begun.headers["Location"])
        path = f"{where.path}?{where.query}&digest={_digest(content)}"
        done = self._ask("PUT", path, content, {"Content-Type": "application/octet-stream"})
        assert done.status == 201, done.status
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, timeout=180)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            answer.read()
            return answer
        finally:
            connection.close()


def config_json(host: str, user: str = USER, password: str = PASSWORD) -> str:
    """A file like docker's ``config.json`` with one login."""
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return json.dumps({"auths": {host: {"auth": login}}})


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
