"""What the pod of a service's hook runs."""

from __future__ import annotations

from msgspec.structs import replace

from store.manifests import Manifest, Restart
from store.services import Hook


def of_hook(manifest: Manifest, hook: Hook) -> Manifest:
    """What a hook's pod runs: the service's container with another command, no ports and no check."""
    container = manifest.container
    if container is not None and hook.privileged is not None:
        container = replace(container, privileged=hook.privileged)
    return replace(
        manifest,
        id=f"{manifest.id}-hook",
        command=hook.command,
        args=[],
        env=manifest.env | hook.env,
        user=hook.user or manifest.user,
        container=container,
        ports={},
        health=None,
        restart=Restart(policy="never"),
        resources={},
    )
