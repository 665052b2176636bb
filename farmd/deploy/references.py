"""What services refer to: sealed secrets and config keys, read for the person who deploys them.

A container's ``secrets: [{secret: shop/db}]`` gets the ciphertext of that version, as a manifest does
(``farmd.commands.secret_references``). A config with ``kv`` gets the value of that config key.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from farmd.commands import resolving, secret_references
from farmd.commands.mutation import Call
from farmd.deploy.spec import ConfigSpec, ContainerSpec, ServiceSpec
from store import codec, secrets
from store.canonical import builtins
from store.errors import AccessDenied
from store.secrets import PREFIX
from store.several import several


async def filled(call: Call, services: Mapping[str, ServiceSpec]) -> dict[str, ServiceSpec]:
    """The services, with ciphertext and values for what they refer to.

    Raises:
        InputInvalid: a secret or a key is missing, or does not fit. AccessDenied: the person may not read it.
    """
    found = dict(services)
    for name, spec in services.items():
        configs = await _configs(call, spec)
        found[name] = replace(spec, container=await _sealed(call, spec), configs=configs)
    return found


async def mistaken(call: Call, services: Mapping[str, ServiceSpec]) -> list[str]:
    """Warnings of files of the machines that have the name of a sealed secret, which may be meant."""
    found = []
    for name, spec in services.items():
        for each in spec.container.secrets:
            if not each.secret and await _exists(call, each.name):
                told = f"services.{name}: secret {each.name} is a file of the machines (agent.secrets_dir)"
                found.append(f"{told}; the sealed one has name: {PREFIX}{each.name}")
    return found


async def _exists(call: Call, path: str) -> bool:
    try:
        return await call.client.read(secrets.key_of(call.keys, path)) is not None
    except AccessDenied:
        return False


async def _sealed(call: Call, spec: ServiceSpec) -> ContainerSpec:
    if not any(each.secret for each in spec.container.secrets):
        return spec.container
    at = f"services.{spec.name}: {secret_references.CONTAINER}"
    said: dict[str, Any] = {
        "secrets": builtins(spec.container.secrets),
        "sealed": builtins(spec.container.sealed),
    }
    wanted = sorted(set(secret_references.named(said, at)))
    versions = await several(partial(secret_references.read, call), wanted)
    resolved = secret_references.resolved(dict(zip(wanted, versions, strict=True)), said, at)
    found = codec.parse_input(ContainerSpec, {"image": spec.container.image, **resolved}, at)
    return replace(spec.container, secrets=found.secrets, sealed=found.sealed)


async def _configs(call: Call, spec: ServiceSpec) -> list[ConfigSpec]:
    named = [each for each in spec.configs if each.kv]
    fields = [(each.kv, f"services.{spec.name}: configs.{each.name}") for each in named]
    values = dict(zip((each.name for each in named), await resolving.contents(call, fields), strict=True))
    return [
        replace(each, content=values[each.name], kv="") if each.name in values else each
        for each in spec.configs
    ]
