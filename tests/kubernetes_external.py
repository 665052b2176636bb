"""A cluster that is there already, for tests: ``FARMD_TEST_KUBERNETES=external``, and KUBECONFIG names it.

Users of tests are the administrator who impersonates them. What tests create is deleted in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.error
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from farmd.kubernetes.access import access
from farmd.runtime.clock import SystemClock
from tests.kubernetes_server import USERS, Api

# Fields of a kubeconfig that hold a path, which is relative to its folder.
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def external() -> bool:
    """Whether tests use a cluster that is there already."""
    return os.environ.get("FARMD_TEST_KUBERNETES") == "external"


class ExternalApi(Api):
    """The API server of KUBECONFIG's current context; its user must be an administrator."""

    def __init__(self) -> None:
        path = Path(os.environ["KUBECONFIG"])
        self._config: dict[str, Any] = _absolute(yaml.safe_load(path.read_text()), path.parent.resolve())
        where = access({}, SystemClock(), kubeconfig=str(path))
        login = asyncio.run(where.credentials.login())
        assert isinstance(login.tls, ssl.SSLContext), "an https:// server"
        self.url, self.headers, self._tls = where.url, login.headers, login.tls
        self.port = urlsplit(self.url).port or 443
        self._created: list[str] = []

    def login(self) -> ssl.SSLContext:
        """The administrator's certificate."""
        return self._tls

    def kubeconfig(self, user: str = "admin") -> str:
        """The kubeconfig itself, or one that impersonates a user."""
        config = json.loads(json.dumps(self._config))
        if user != "admin":
            for each in config["users"]:
                each["user"]["as"] = user
        return json.dumps(config)

    def namespace(self, name: str) -> str:
        """A new namespace."""
        self._created.append(name)
        return super().namespace(name)

    def close(self) -> None:
        """Delete what tests created."""
        group = "/apis/rbac.authorization.k8s.io/v1"
        paths = [f"/api/v1/namespaces/{name}" for name in self._created]
        for user in USERS:
            paths += [f"{group}/{kind}/test-{user}" for kind in ("clusterrolebindings", "clusterroles")]
        for path in paths:
            try:
                self.ask("DELETE", path)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
                error.close()
        super().close()


def _absolute(found: Any, folder: Path) -> Any:
    if isinstance(found, list):
        return [_absolute(each, folder) for each in found]
    if isinstance(found, dict):
        return {
            key: str(folder / each) if key in _PATHS and each else _absolute(each, folder)
            for key, each in found.items()
        }
    return found
