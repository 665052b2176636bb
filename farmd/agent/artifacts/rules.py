"""Which sources of artifacts a node takes, where they lead, and who the node is for their servers.

An agent asks servers on behalf of manifests, and reaches more than their authors may. So by default it asks
nothing on the node itself and no link-local address, whatever a name resolves to and wherever a redirect
leads. Credentials go to the host that the node's file names for them, by HTTPS alone.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import os
import socket
import ssl
import stat
import sys
import tomllib
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from farmd.agent.errors import StartFailed
from farmd.agent.model import ArtifactConfig
from store import artifacts, credentials, features
from store.errors import CredentialInvalid
from store.features import LOCAL_SOURCES, REGISTRY
from store.manifests import Manifest

_AUTH = "agent.artifact_auth"


class _Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str = ""
    password: str = ""
    bearer: str = ""

    @property
    def header(self) -> str:
        if self.bearer:
            return f"Bearer {self.bearer}"
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")


@functools.cache
def zstd_from() -> str | None:
    """Where the sandbox imports zstd from; empty: it is in the standard library. None: there is none."""
    if sys.version_info >= (3, 14):
        return ""
    try:
        found = importlib.util.find_spec("backports.zstd")
    except ModuleNotFoundError:
        return None
    return None if found is None or not found.origin else str(Path(found.origin).parents[2])


class ArtifactRegistry:
    """Where the sources ``registry://NAME/path`` lead on this node."""

    def __init__(self, registries: Mapping[str, str]) -> None:
        self._registries = registries

    @property
    def features(self) -> list[str]:
        """What the node's presence says of them (R11)."""
        return [f"{REGISTRY}{name}" for name in sorted(self._registries)]

    def resolve(self, source: str) -> str:
        """The source that a source stands for: itself, unless it names a registry.

        Raises:
            StartFailed: this node knows no registry of that name.
        """
        name = artifacts.registry_of(source)
        if not name:
            return source
        if name not in self._registries:
            known = ", ".join(sorted(self._registries)) or "none"
            raise StartFailed(f"found {source}, expected a registry of agent.artifact_registries ({known})")
        base, path = self._registries[name], source.removeprefix(f"registry://{name}/")
        return f"{base.rstrip('/')}/{path}"


class Rules:
    """The rules of one node."""

    def __init__(self, config: ArtifactConfig) -> None:
        self.config = config
        self.registry = ArtifactRegistry(config.registries)
        self._local = LOCAL_SOURCES in config.allow
        self.folders = [each for each in config.allow if each.startswith("/")]

    def features(self) -> list[str]:
        """What the node's presence says of them (R11)."""
        words = [*self.folders, *([LOCAL_SOURCES] if self._local else [])]
        zstd = [features.ZSTD] if zstd_from() is not None else []
        return [features.ARTIFACTS, *zstd, *self.registry.features, *(f"allow.{each}" for each in words)]

    def preflight(self, manifest: Manifest) -> None:
        """Refuse sources that this node does not take, as far as they say so themselves.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        for at, each in enumerate(manifest.artifacts):
            try:
                self.judged(each.source)
            except StartFailed as error:
                raise StartFailed(f"artifacts[{at}].source: {error.message}", field="artifacts") from error

    def judged(self, source: str) -> str:
        """What a source stands for, if this node takes it.

        Raises:
            StartFailed: it does not.
        """
        found = self.registry.resolve(source)
        if path := artifacts.path_of(found):
            if features.lacking([f"allow.{path}"], self.features()):
                raise StartFailed(f"found {found}, expected a file below a folder of the node's agent.allow")
            return found
        # The node's administrator chose the host of a registry.
        self.require(found, named=found == source)
        return found

    def require(self, url: str, *, named: bool = True) -> None:
        """Refuse a URL of a server that this node does not ask.

        Raises:
            StartFailed: it does not.
        """
        host, hosts = urlsplit(url).hostname or "", self.config.hosts
        if named and hosts and host not in hosts:
            raise StartFailed(f"found the host {host}, expected one of agent.artifact_hosts")
        try:
            address = socket.inet_ntoa(socket.inet_aton(host))  # also 2130706433 and 0x7f.1
        except OSError:
            address = host
        local = artifacts.is_local(url) or self.refusal(address)
        if local and not self._local:
            raise StartFailed(f"found the host {host}, expected another one: {_not_allowed()}")

    def refusal(self, address: str) -> str:
        """Why no server at an IP address is asked; empty if it may be, or is a name."""
        if self._local:
            return ""
        if why := credentials.refusal(address):
            return f"{why}: {_not_allowed()}"
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return ""
        found = (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
        if found.is_loopback or found.is_unspecified or str(found).startswith("0."):
            return f"{address} is the node itself: {_not_allowed()}"
        return ""

    def opened(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for an address that was resolved, or stood in the URL; a proxy is the node's choice."""
        family, kind, protocol, _, where = address
        if not self.config.proxy and (why := self.refusal(str(where[0]))):
            raise Forbidden(why)
        return socket.socket(family, kind, protocol)

    def login(self, url: str) -> dict[str, str]:
        """The header with the node's credentials for a server; none for another one, and none over HTTP.

        Raises:
            StartFailed: the file cannot be used.
        """
        found = urlsplit(url)
        if not self.config.auth or found.scheme != "https":
            return {}
        host = found.hostname or ""
        names = (f"{host}:{found.port or 443}", *([host] if found.port in (None, 443) else []))
        logins = self._logins()
        login = next((logins[name] for name in names if name in logins), None)
        return {} if login is None else {"Authorization": login.header}

    def _logins(self) -> dict[str, _Login]:
        path, me = Path(self.config.auth), os.geteuid()
        try:
            body = credentials.content(_AUTH, str(path))
            state = path.stat()
        except (CredentialInvalid, OSError) as error:
            raise StartFailed(getattr(error, "message", f"{_AUTH}: {error}")) from error
        if state.st_uid != me or stat.S_IMODE(state.st_mode) & 0o077:
            mode = stat.S_IMODE(state.st_mode)
            raise StartFailed(
                f"{_AUTH}: found mode {mode:04o} and uid {state.st_uid} of {path}, expected 0600 and uid {me}"
            )
        try:
            return msgspec.convert(tomllib.loads(body.decode()), dict[str, _Login])
        except ValueError:  # its text could show a password
            raise StartFailed(
                f'{_AUTH}: found {path}, expected TOML: tables ["HOST"] with user and password, or bearer'
            ) from None

    def tls(self) -> ssl.SSLContext:
        """The authorities that servers are checked against: the machine's, or those of the node's file.

        Raises:
            StartFailed: the file cannot be used.
        """
        try:
            return credentials.authorities("agent.artifact_ca", self.config.ca)
        except CredentialInvalid as error:
            raise StartFailed(error.message) from error


class Forbidden(OSError):
    """A name leads to an address that this node asks nothing."""


def _not_allowed() -> str:
    return f"agent.allow of this node does not list {LOCAL_SOURCES!r}"
