"""Derives from a manifest what a shim needs to start it: environment, user, limits.

A workload must never see the agent's own credentials (Consul's, farmd's, systemd's sockets), and must
never run as root because its own user could not be used.
"""

from __future__ import annotations

import os
import pwd
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from farmd.agent.errors import StartFailed
from store.manifests import Manifest

# Variables that are meant for the agent alone: tokens, systemd's sockets, watchdog, credentials.
PRIVATE_PREFIXES = ("CONSUL_", "FARMD_", "WATCHDOG_", "LISTEN_", "SYSTEMD_", "KUBE")
PRIVATE_NAMES = frozenset(
    {
        "NOTIFY_SOCKET",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "MAINPID",
        "MANAGERPID",
        "CREDENTIALS_DIRECTORY",
        "STATE_DIRECTORY",
        "RUNTIME_DIRECTORY",
        "CONFIGURATION_DIRECTORY",
        "LOGS_DIRECTORY",
        "CACHE_DIRECTORY",
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
    }
)


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a workload runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the agent's environment that its workloads may see."""
    return {
        name: value
        for name, value in environ.items()
        if name not in PRIVATE_NAMES and not name.startswith(PRIVATE_PREFIXES)
    }


def environment(
    manifest: Manifest, environ: Mapping[str, str], node: str, instance: str, ports: Mapping[str, int]
) -> dict[str, str]:
    """A workload's environment. Later parts win: inherited, the user's, the manifest's, the agent's."""
    built = inherited(environ)
    built.setdefault("PATH", os.defpath)
    found = account(manifest)
    if found is not None:
        built |= {"USER": found.name, "LOGNAME": found.name, "HOME": found.home, "SHELL": found.shell}
    built |= manifest.env
    built |= {"FARMD_NODE": node, "FARMD_INSTANCE": instance}
    return built | {port_variable(name): str(port) for name, port in ports.items()}


def port_variable(name: str) -> str:
    """``http-admin`` → ``FARMD_PORT_HTTP_ADMIN``."""
    return "FARMD_PORT_" + name.upper().replace("-", "_")


def account(manifest: Manifest) -> Account | None:
    """The manifest's user; None for the agent's own.

    Raises:
        StartFailed: the user does not exist, or the agent may not switch to it.
    """
    if not manifest.user:
        return None
    try:
        found = pwd.getpwnam(manifest.user)
    except KeyError as error:
        raise StartFailed(
            f"user: found {manifest.user!r}, expected a user that exists on this node", field="user"
        ) from error
    if os.geteuid() == found.pw_uid:
        return None
    if os.geteuid() != 0:
        raise StartFailed(
            f"user: found {manifest.user!r}, but only an agent that runs as root can start workloads as"
            f" another user (this one runs as uid {os.geteuid()})",
            field="user",
        )
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return Account(found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_shell)


def limits(manifest: Manifest) -> list[tuple[str, int, int]]:
    """The manifest's ulimits as (name, ``RLIMIT_*`` number, value); -1 is unlimited.

    Raises:
        StartFailed: this system has no limit of that name.
    """
    found = []
    for name, value in manifest.ulimits.items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if kind is None:
            known = sorted(k[7:].lower() for k in vars(resource) if k.startswith("RLIMIT_"))
            raise StartFailed(
                f"ulimits: found {name!r}, expected one of {', '.join(known)}", field=f"ulimits.{name}"
            )
        found.append((name, int(kind), resource.RLIM_INFINITY if value == -1 else value))
    return found


def stop_signal(manifest: Manifest) -> signal.Signals:
    """The signal that asks a workload to stop.

    Raises:
        StartFailed: no signal has that name.
    """
    name = manifest.stop.signal.upper().removeprefix("SIG")
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError as error:
        raise StartFailed(
            f"stop.signal: found {manifest.stop.signal!r}, expected a signal such as TERM or INT",
            field="stop.signal",
        ) from error


def preflight(manifest: Manifest) -> None:
    """Refuse a manifest that cannot run on this node, before a running process is stopped for it.

    Raises:
        StartFailed: naming the field, what was found and what was expected.
    """
    account(manifest)
    limits(manifest)
    stop_signal(manifest)
