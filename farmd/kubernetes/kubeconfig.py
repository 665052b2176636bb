"""Reads kubeconfig files as kubectl does: of a list in KUBECONFIG the first file that names a thing wins.

A path in a file is relative to that file. Each mistake is one line that names the file, the field, what was
found and what was expected; no line holds a token, a key or a password.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from farmd.commands import documents
from store import mistakes
from store.errors import InputInvalid, refuse

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_NO_VALUES = ("token", "password", "client-key-data")


class KubeconfigCluster(msgspec.Struct, rename="kebab", frozen=True):
    """Where an API server is and how its certificate is checked."""

    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class Variable(msgspec.Struct, frozen=True):
    """A variable that a credential program gets."""

    name: str
    value: str


class Exec(msgspec.Struct, rename="camel", frozen=True):
    """A program that prints a credential."""

    command: str
    api_version: str
    args: list[str] | None = None
    env: list[Variable] | None = None
    provide_cluster_info: bool = False
    interactive_mode: str = ""
    install_hint: str = ""


class User(msgspec.Struct, rename="kebab", frozen=True):
    """The credentials of a user."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_groups: list[str] = msgspec.field(default_factory=list, name="as-groups")
    exec: Exec | None = None
    auth_provider: dict[str, Any] | None = None


class Context(msgspec.Struct, frozen=True):
    """A cluster, a user and a namespace together."""

    cluster: str
    user: str = ""
    namespace: str = ""


class NamedCluster(msgspec.Struct, frozen=True):
    """An entry of ``clusters``."""

    name: str
    cluster: KubeconfigCluster


class NamedUser(msgspec.Struct, frozen=True):
    """An entry of ``users``."""

    name: str
    user: User = User()


class NamedContext(msgspec.Struct, frozen=True):
    """An entry of ``contexts``."""

    name: str
    context: Context


class KubeconfigFile(msgspec.Struct, rename="kebab", frozen=True):
    """One file; ``None`` is what tools write for an empty list."""

    kind: str = "Config"
    current_context: str = ""
    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None


Named = TypeVar("Named", NamedCluster, NamedUser, NamedContext)


@dataclass(frozen=True, slots=True)
class Chosen:
    """One context with its cluster and user; paths are absolute. ``origin`` names files and context."""

    context: str
    namespace: str
    cluster: KubeconfigCluster
    user: User
    cluster_field: str
    user_field: str
    origin: str


def choose(paths: Sequence[str], context: str = "") -> Chosen:
    """The context of that name, or the current one, from the files in order; absent files are passed over.

    Raises:
        InputInvalid: no file is there, a file is not usable, or what a context names is missing.
    """
    files = [(path, _read(path)) for path in paths if len(paths) == 1 or Path(path).exists()]
    listed = os.pathsep.join(paths)
    if not files:
        refuse(f"KUBECONFIG: {listed}", "no such file", "at least one kubeconfig file")
    place = next((path for path, file in files if file.current_context), files[0][0])
    name = context or next((file.current_context for _, file in files if file.current_context), "")
    where = f"--context of {listed}" if context else f"{place}: current-context"
    contexts = [
        (f"{path}: contexts[{i}]", one) for path, file in files for i, one in enumerate(file.contexts or ())
    ]
    at, found = _named(contexts, name, where, "contexts")
    clusters = [
        (f"{path}: clusters[{i}]", one) for path, file in files for i, one in enumerate(file.clusters or ())
    ]
    users = [(f"{path}: users[{i}]", one) for path, file in files for i, one in enumerate(file.users or ())]
    cluster_at, cluster = _named(clusters, found.context.cluster, f"{at}.context.cluster", "clusters")
    user_at, user = f"{at}.context.user", NamedUser("")
    if found.context.user:
        user_at, user = _named(users, found.context.user, f"{at}.context.user", "users")
    return Chosen(
        context=name,
        namespace=found.context.namespace,
        cluster=_placed(cluster.cluster, cluster_at, ("certificate_authority",)),
        user=_user(user.user, user_at),
        cluster_field=f"{cluster_at}.cluster",
        user_field=f"{user_at}.user",
        origin=f"{listed} (context {name!r})",
    )


def _named(known: Sequence[tuple[str, Named]], name: str, where: str, entries: str) -> tuple[str, Named]:
    """The first of that name, with its place."""
    for at, one in known:
        if one.name == name:
            return at, one
    names = list(dict.fromkeys(one.name for _, one in known))
    if not names:
        refuse(where, repr(name), f"one of the {entries}, but the file has none")
    found = f"found {name!r}" if name else "found nothing"
    near = mistakes.nearest(name, names) if name else f", expected one of {', '.join(names)}"
    raise InputInvalid(f"{where}: {found}{near}", field=where)


def _read(path: str) -> KubeconfigFile:
    try:
        text = Path(path).read_text()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "bytes that are not valid UTF-8"
        raise InputInvalid(f"{path}: found {reason!r}, expected a readable kubeconfig file") from error
    source, data = documents.parse(text, path)[0]
    wrong = mistakes.first(KubeconfigFile, data, unknown=False)
    if wrong is not None:
        field, what = wrong
        secret = field.rpartition(".")[2] in _NO_VALUES
        what = "found no text, expected text in quotes" if secret else what
        raise InputInvalid(f"{source}: {field}: {what}" if field else f"{source}: {what}", field=field)
    file = msgspec.convert(data, KubeconfigFile)
    if file.kind != "Config":
        refuse(f"{source}: kind", repr(file.kind), "Config")
    return file


T = TypeVar("T", KubeconfigCluster, User)


def _placed(one: T, at: str, fields: Sequence[str]) -> T:
    """With paths that no longer depend on where the file lies."""
    folder = Path(at.rpartition(": ")[0]).absolute().parent
    found = {name: str(folder / getattr(one, name)) for name in fields if getattr(one, name)}
    return msgspec.structs.replace(one, **found)


def _user(user: User, at: str) -> User:
    """A user whose credentials can be used.

    Raises:
        InputInvalid: they contradict one another, or a way is not supported.
    """
    at_user = f"{at}.user"
    if user.auth_provider is not None:
        refuse(
            f"{at_user}.auth-provider",
            repr(user.auth_provider.get("name", "")),
            "exec: a program that prints a token",
        )
    for name, other in (("client-certificate", "client-key"), ("client-key", "client-certificate")):
        if _either(user, name) and not _either(user, other):
            refuse(f"{at_user}.{other}", "nothing", f"a file or {other}-data, because {name} is set")
    ways = {
        "token": bool(user.token or user.token_file),
        "username": bool(user.username),
        "exec": user.exec is not None,
    }
    if len(used := [way for way, there in ways.items() if there]) > 1:
        refuse(at_user, " and ".join(used), "one of them")
    if user.exec is not None:
        user = msgspec.structs.replace(user, exec=_exec(user.exec, at))
    return _placed(user, at, ("client_certificate", "client_key", "token_file"))


def _either(user: User, name: str) -> str:
    field = name.replace("-", "_")
    return str(getattr(user, field) or getattr(user, f"{field}_data"))


def _exec(program: Exec, at: str) -> Exec:
    """A program whose path does not depend on where the file lies; a bare name is looked for on PATH."""
    field = f"{at}.user.exec"
    if program.api_version not in EXEC_VERSIONS:
        refuse(f"{field}.apiVersion", repr(program.api_version), " or ".join(EXEC_VERSIONS))
    if not program.command:
        refuse(f"{field}.command", "nothing", "a program")
    if program.interactive_mode == "Always":
        refuse(
            f"{field}.interactiveMode", "'Always'", "Never or IfAvailable, because a daemon has no terminal"
        )
    if os.sep not in program.command:
        return program
    folder = Path(at.rpartition(": ")[0]).absolute().parent
    return msgspec.structs.replace(program, command=str(folder / program.command))
