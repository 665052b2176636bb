"""Clusters for tests of deployments, written by hand as deployments and agents leave them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64decode
from typing import Any

from msgspec.structs import replace

from farmd.deploy.manifest import compiled
from farmd.deploy.spec import ServiceSpec
from store import codec, manifests
from store.keys import Keys, is_sentinel
from store.nodes import Agent
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Health, Reality
from store.services import Service
from tests.farmctl import Farmctl, in_cluster, put


def machines(address: str, *names: str) -> Farmctl:
    """farmctl in a cluster of machines that run containers."""
    made = in_cluster(address, *names)
    for name in names:
        agent = Agent(node=name, version="1", features=["runtime.container"])
        write(made, Keys(made.prefix).agent(name), agent)
    return made


def write(farmctl: Farmctl, key: str, record: object) -> None:
    put(farmctl, key.removeprefix(farmctl.prefix), codec.encode(record).decode())


def kept(farmctl: Farmctl, family: str, kind: Any) -> list[Any]:
    """The records of a family; without a ``kind`` the last part of each key with its value."""
    url = f"http://{farmctl.address}/v1/kv/{farmctl.prefix}{family}/?recurse"
    try:
        with urllib.request.urlopen(url) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError:
        return []  # Consul's answer for an empty tree
    raw = [
        (each["Key"].rpartition("/")[2], b64decode(each["Value"] or ""))
        for each in found
        if not is_sentinel(each["Key"])
    ]
    return raw if kind is None else [codec.decode(kind, value, key) for key, value in raw]


def stands(
    farmctl: Farmctl,
    spec: ServiceSpec,
    *places: str,
    sick: str = "",
    project: str = "shop",
    released: int = 1,
    **fields: Any,
) -> None:
    """A service as a deployment leaves it, with its pods on these machines.

    ``released`` is its revision; 0: a deployment that ended early left it.
    """
    keys, owner = Keys(farmctl.prefix), f"0{spec.name.encode().hex()}"[:16].ljust(16, "0")
    manifest, version = compiled(replace(spec, on_lost="wait") if spec.mounted() else spec)
    sha = version.manifest
    put(farmctl, keys.manifest(sha).removeprefix(farmctl.prefix), manifests.canonical(manifest).decode())
    rc = ReplicationController(id=owner, name=f"svc-{spec.name}", manifest=sha, replicas_desired=len(places))
    write(farmctl, keys.record("rcs", owner), rc)
    service = Service(
        id=owner,
        name=spec.name,
        active=[f"rcs/{owner}"],
        project=project,
        mode=spec.mode,
        version=version if released else None,
        revision=released,
    )
    service = replace(service, **fields)
    write(farmctl, keys.record("services", owner), service)
    write(farmctl, keys.name("services", spec.name), owner)
    for place in places:
        instance = f"{spec.name}~0"
        health = Health("critical" if place == sick else "passing")
        write(farmctl, keys.pod(owner, place, instance), Pod(manifest=sha))
        put(farmctl, f"intent/{place}/{instance}", f'{{"manifest": "{sha}", "owner": "{owner}"}}')
        write(
            farmctl,
            keys.reality(place, instance),
            Reality(manifest=sha, owner=owner, intent=10**9, health=health),
        )
