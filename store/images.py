"""References of images, and the logins for their registries."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field, replace

from store.errors import refuse
from store.mistakes import shown

# References of images: ``[registry[:port]/]path[:tag][@sha256:…]``, checked before anything is pulled.
#
# The grammar is that of the distribution project (``reference/regexp.go``).

LONGEST = 255
REGISTRY = "docker.io"

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:(?P<host>{_HOST}(?::[0-9]+)?)/)?(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """One image; ``tag`` and ``digest`` are empty where the text has none."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def familiar(self) -> str:
        """The repository as people write it, without tag and digest."""
        if self.registry != REGISTRY:
            return f"{self.registry}/{self.path}"
        return self.path.removeprefix("library/")

    @property
    def short(self) -> str:
        """The image for people, with the beginning of its digest."""
        digest = self.digest[: len("sha256:") + 8]
        return str(replace(self, digest=digest))

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.familiar}{tag}{'@' + self.digest if self.digest else ''}"


def parse(text: str, field: str = "image") -> Reference:
    """Read a reference; one without a registry is Docker Hub's.

    Raises:
        InputInvalid: naming the field.
    """
    found = _REFERENCE.fullmatch(text) if len(text) <= LONGEST + 80 else None
    if found is None:
        refuse(field, shown(text), "an image such as postgres:16 or registry.example/team/web:1.4")
    host, path = found["host"] or "", found["path"]
    if host and not (set(host) & set(".:[") or host == "localhost" or host != host.lower()):
        host, path = "", f"{host}/{path}"
    if host in ("", "index.docker.io"):
        host = REGISTRY
    if host == REGISTRY and "/" not in path:
        path = f"library/{path}"
    if len(host) + len(path) > LONGEST:
        refuse(field, f"a name of {len(host) + len(path)} characters", f"at most {LONGEST}")
    return Reference(host, path, found["tag"] or "", found["digest"] or "")


# Logins for registries of images, as docker keeps them in ``config.json``; helper programs are not asked.


@dataclass(frozen=True, slots=True)
class Login:
    """A user with a password, or an identity token alone; no part of it is ever shown."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


def login(config: str, registry: str) -> Login | None:
    """The login for a registry in the text of a credentials file; None if there is none.

    Raises:
        ValueError: the text is no credentials file. The error contains nothing of the file.
    """
    names = {registry, f"https://{registry}", f"http://{registry}"}
    names |= {f"{name}/{version}" for name in names for version in ("v1", "v2")}
    if registry == REGISTRY:
        names |= {"https://index.docker.io/v1", "index.docker.io", "registry-1.docker.io"}
    try:
        for name, entry in json.loads(config).get("auths", {}).items():
            if name.rstrip("/") in names and (found := _read(entry)) is not None:
                return found
    except (ValueError, AttributeError, TypeError):
        raise ValueError("expected a file like docker's config.json") from None
    return None


def _read(entry: dict[str, str]) -> Login | None:
    if entry.get("identitytoken"):
        return Login(identity_token=entry["identitytoken"])
    user, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
    return Login(user, password) if user else None
