"""Derives from a manifest what a shim needs to start it: environment, limits, signal.

A workload must never see the agent's own environment, which holds credentials (Consul's, farmd's, systemd's
sockets).
"""

from __future__ import annotations

import os
import pwd
import resource
import signal
from collections.abc import Mapping
from typing import Any

from farmd.agent.errors import StartFailed
from farmd.agent.users import Account
from store import variables
from store.manifests import Manifest

# A workload gets only these of the agent's variables, or what stands here where the agent has none.
INHERITED = {"PATH": os.defpath, "LANG": "C.UTF-8"}
NOTHING: Mapping[str, str] = {}


def environment(
    manifest: Manifest,
    user: Account,
    environ: Mapping[str, str],
    node: str,
    instance: str,
    ports: Mapping[str, int],
    given: Mapping[str, str] = NOTHING,
) -> dict[str, str]:
    """A workload's whole environment. Later parts win: inherited, the user's, the manifest's, farmd's own.

    ``given`` are farmd's own variables of this start (R29).
    Files that name a ``FARMD_*`` variable are refused. A manifest that was stored before that rule still
    runs: its workload gets those variables that farmd itself does not set.
    """
    built = {name: environ.get(name) or default for name, default in INHERITED.items()}
    built |= _of_the_user(user)
    return built | with_own(manifest, node, instance, ports, given)


def with_own(
    manifest: Manifest, node: str, instance: str, ports: Mapping[str, int], given: Mapping[str, str]
) -> dict[str, str]:
    """The manifest's variables, which may speak of farmd's own, and these, which win."""
    own = {**given, variables.NODE: node, variables.INSTANCE: instance}
    own |= {variables.port_variable(name): str(port) for name, port in ports.items()}
    return variables.expanded(manifest.env, own) | own


def _of_the_user(user: Account) -> dict[str, str]:
    """What a login sets for the user that the workload runs as; without an account its home is ``/``."""
    try:
        found = pwd.getpwnam(user.name)
    except KeyError:
        return {"HOME": "/"}
    return {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name, "SHELL": found.pw_shell}


def limits(manifest: Manifest) -> list[tuple[str, int, int]]:
    """The manifest's ulimits as (name, ``RLIMIT_*`` number, value); -1 is unlimited.

    A process or unit with secrets dumps no core, unless its manifest has a limit of its own for that.

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
    # An engine that is given one limit drops its own defaults of the others, so a container keeps them.
    if (manifest.secrets or manifest.secret_env) and "core" not in manifest.ulimits:
        # 1 also keeps a program that core_pattern names from getting a dump; 0 does not.
        most = resource.getrlimit(resource.RLIMIT_CORE)[1]
        found.append(("core", int(resource.RLIMIT_CORE), 0 if most == 0 else 1))
    return found


def stages(manifest: Manifest, env: Mapping[str, str], hide: list[bytes]) -> dict[str, Any]:
    """What runs before, beside and after the workload, as its shim runs it; ``env`` are the variables.
    ``hide``: what nobody may read in the end of a failed command's output.
    """

    def step(command: list[str], timeout: float) -> dict[str, Any]:
        return {"argv": variables.words(command, env), "timeout": timeout}

    return {
        "init": [{**step(each.command, each.timeout), "retries": each.retries} for each in manifest.init],
        "sidecars": [(each.name, variables.words(each.command, env)) for each in manifest.sidecars],
        "restart_times": (manifest.restart.initial, manifest.restart.maximum, manifest.restart.reset),
        "grace": manifest.stop.grace,
        "hide": hide if manifest.staged else [],
        "after_stop": [step(each.command, each.timeout) for each in manifest.after_stop],
    }


def stop_signal(manifest: Manifest) -> signal.Signals:
    """The signal that asks a workload to stop.

    Raises:
        StartFailed: no signal has that name.
    """
    return signal_of(manifest.stop.signal, "stop.signal", "TERM or INT")


def signal_of(name: str, field: str = "on_change.signal", such_as: str = "HUP") -> signal.Signals:
    """A signal by its name.

    Raises:
        StartFailed: no signal has that name.
    """
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError as error:
        raise StartFailed(
            f"{field}: found {name!r}, expected a signal such as {such_as}", field=field
        ) from error


def preflight(manifest: Manifest) -> None:
    """Refuse a manifest that cannot run on this node, before a running process is stopped for it.

    Raises:
        StartFailed: naming the field, what was found and what was expected.
    """
    limits(manifest)
    stop_signal(manifest)
