"""What a pod runs, for ``describe``: its command, check, restarts and resources, never a secret."""

from __future__ import annotations

import shlex
from typing import Any

from farmd.commands.mutation import Call
from farmd.tables.model import pairs
from store import manifests
from store.canonical import builtins
from store.errors import NotFound, RecordInvalid
from store.manifests import AfterStop, HealthCheck, Init, Manifest, Stop
from store.words import amount_text

# What everybody who may read sees of a workload's inputs: names, since values may be secrets.

HIDDEN = "…"


def without_values(told: Any) -> Any:
    """Plain data without the values of variables and the content of files, at any depth.

    Such stand in hooks and manifests, and in the containers of Kubernetes.
    """
    if isinstance(told, dict):
        return {key: _OF.get(key, without_values)(item) for key, item in told.items()}
    return [without_values(item) for item in told] if isinstance(told, list | tuple) else told


def _variables(env: Any) -> Any:
    """A table of variables, or a list of them with ``name`` and ``value``; what is neither is none."""
    return dict.fromkeys(env, HIDDEN) if isinstance(env, dict) else _each(env, "value")


def _files(files: Any) -> Any:
    return _each(_each(files, "content"), "template")


def _each(items: Any, field: str) -> Any:
    """A list whose objects have the field hidden."""
    if not isinstance(items, list | tuple):
        return without_values(items)
    return [
        each | {field: HIDDEN} if isinstance(each, dict) and field in each else without_values(each)
        for each in items
    ]


def _sealed(sealed: Any) -> Any:
    """Secrets without their ciphertext, which says nothing to people."""
    if not isinstance(sealed, dict):
        return without_values(sealed)
    return {
        name: each | {"body": HIDDEN} if isinstance(each, dict) else each for name, each in sealed.items()
    }


_OF = {"env": _variables, "files": _files, "sealed": _sealed}


async def read(call: Call, sha: str) -> tuple[Manifest | None, list[tuple[str, str]]]:
    """A manifest and its facts, none for an empty digest.

    A manifest that is missing or corrupt is reported as such and hides nothing else.
    """
    if not sha:
        return None, []
    try:
        manifest = await manifests.read(call.client, call.keys, sha)
    except (NotFound, RecordInvalid) as error:
        return None, [("Command", f"unknown: {error.message}")]
    return manifest, facts(manifest)


def facts(manifest: Manifest) -> list[tuple[str, str]]:
    """Titles and lines."""
    restart = manifest.restart
    told = [
        ("Command", shlex.join([*manifest.command, *manifest.args]) or "the image's own"),
        ("Health check", _check(manifest.health)),
        (
            "Restart",
            f"after {restart.initial:g} s, doubled up to {restart.maximum:g} s;"
            f" starts over after a run of {restart.reset:g} s",
        ),
        ("Stop", _stop(manifest.stop)),
        *(("After stop", _limited(each)) for each in manifest.after_stop),
        (
            "Resources",
            pairs({name: amount_text(amount) for name, amount in manifest.resources.items()}) or "none",
        ),
    ]
    limits = {name: amount for name, amount in builtins(manifest.limits).items() if amount}
    if limits:
        told.append(("Limits", pairs({name: amount_text(amount) for name, amount in limits.items()})))
    if manifest.logs.to:
        told.append(("Output to", ", ".join(manifest.logs.to)))
    first = [("Init", _init(each)) for each in manifest.init]
    first += [("Beside", f"{each.name}: {shlex.join(each.command)}") for each in manifest.sidecars]
    told = [*told[:1], *first, *told[1:]]
    if manifest.container is not None:
        told.insert(0, ("Image", manifest.container.image))
    if restart.policy != "always":
        told.append(("Restart policy", restart.policy))
    told += [("Artifact", f"{each.to} from {each.told}") for each in manifest.artifacts]
    told += [("Secret", line) for line in _secrets(manifest)]
    told += [("From config", f"{each.field} from {each.told}") for each in manifest.sources]
    if manifest.ports:
        told.append(("Ports", pairs({name: port.port or "any" for name, port in manifest.ports.items()})))
    if manifest.env:
        told.append(("Environment", ", ".join(sorted(manifest.env))))
    return told


def _secrets(manifest: Manifest) -> list[str]:
    """A line for each sealed secret: its version, its group, and the variables and files that get it."""
    used = [(reference, name) for name, reference in sorted(manifest.secret_env.items())]
    used += [(each.secret, each.path or each.name) for each in manifest.secrets if each.secret]
    return [
        f"{name} of group {each.group}: {', '.join(told for reference, told in used if reference == name)}"
        for name, each in sorted(manifest.sealed.items())
    ]


def _stop(stop: Stop) -> str:
    command = f"{shlex.join(stop.command)}, at most {stop.command_timeout:g} s; " if stop.command else ""
    delay = f"out of the endpoints for {stop.delay:g} s, " if stop.delay else ""
    return f"{command}{delay}{stop.signal}, then KILL after {stop.grace:g} s"


def _init(init: Init) -> str:
    tries = f", {init.retries + 1} tries" if init.retries else ""
    return f"{_limited(init)}{tries}"


def _limited(step: Init | AfterStop) -> str:
    return f"{shlex.join(step.command)}, at most {step.timeout:g} s"


def _check(health: HealthCheck | None) -> str:
    if health is None:
        return "none: a pod that runs counts as healthy"
    what = {
        "http": f"http {health.path} on port {health.port}",
        "tcp": f"tcp port {health.port}",
        "command": shlex.join(health.command),
    }[health.type]
    grace = f", failures are ignored for {health.start_period:g} s" if health.start_period else ""
    again = f", restarted after {health.restart_after:g} s unhealthy" if health.restart_after else ""
    return (
        f"{what}, every {health.interval:g} s, timeout {health.timeout:g} s,"
        f" healthy after {health.passes} and unhealthy after {health.failures} in a row{grace}{again}"
    )
