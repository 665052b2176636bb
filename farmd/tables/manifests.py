"""What a pod runs, for ``describe``: its command, check, restarts and resources, never a secret."""

from __future__ import annotations

import shlex

from farmd.commands.mutation import Call
from farmd.tables.words import pairs
from store import manifests
from store.errors import NotFound, RecordInvalid
from store.manifests import HealthCheck, Manifest, Stop
from store.words import amount_text


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
            f" anew after a run of {restart.reset:g} s",
        ),
        ("Stop", _stop(manifest.stop)),
        (
            "Resources",
            pairs({name: amount_text(amount) for name, amount in manifest.resources.items()}) or "none",
        ),
    ]
    if manifest.container is not None:
        told.insert(0, ("Image", manifest.container.image))
    if restart.policy != "always":
        told.append(("Restart policy", restart.policy))
    if manifest.ports:
        told.append(("Ports", pairs({name: port.port or "any" for name, port in manifest.ports.items()})))
    if manifest.env:
        told.append(("Environment", ", ".join(sorted(manifest.env))))
    return told


def _stop(stop: Stop) -> str:
    command = f"{shlex.join(stop.command)}, at most {stop.command_timeout:g} s; " if stop.command else ""
    delay = f"out of the endpoints for {stop.delay:g} s, " if stop.delay else ""
    return f"{command}{delay}{stop.signal}, then KILL after {stop.grace:g} s"


def _check(health: HealthCheck | None) -> str:
    if health is None:
        return "none: a pod that runs counts as healthy"
    what = {
        "http": f"http {health.path} on port {health.port}",
        "tcp": f"tcp port {health.port}",
        "command": shlex.join(health.command),
    }[health.type]
    grace = f", bad ones do not count for {health.start_period:g} s" if health.start_period else ""
    return (
        f"{what}, every {health.interval:g} s, timeout {health.timeout:g} s,"
        f" healthy after {health.passes} and unhealthy after {health.failures} in a row{grace}"
    )
