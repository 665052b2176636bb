"""Logins for registries of images, as docker keeps them in ``config.json``; helper programs are not asked."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

from store.images import REGISTRY


@dataclass(frozen=True, slots=True)
class Login:
    """A user with a password, or an identity token alone; no part of it is ever shown."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


def login(config: str, registry: str) -> Login | None:
    """The login for a registry in the text of such a file; None without any.

    Raises:
        ValueError: the text is no such file. The error does not tell what the file holds.
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
