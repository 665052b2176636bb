"""What the members of a job in Kubernetes are told of each other, in the words of their framework.

An address is that of the member's own service, or its name below the service that all members share. Names
resolve before members are ready, and stay the same for all attempts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farmd.jobs.model import ReplicaType, Slot
from farmd.jobs.names import gen_general_name
from farmd.jobs.resources.resource import Resource
from farmd.jobs.resources.training import WORKER, rendezvous

Env = dict[str, str]


def environment(of: Resource, slot: Slot, attempt: int) -> Env:
    """The environment of a slot's member."""
    match of.kind.environment:
        case "tf":
            return _tf(of, slot)
        case "torch":
            return _torch(of, slot)
    return _farmd(of, slot, attempt)


def gets_environment(of: Resource, container: str) -> bool:
    """Whether a container gets the environment: TensorFlow's the one that trains alone, others each one."""
    return of.kind.environment != "tf" or container == of.kind.container


def address(of: Resource, slot: Slot) -> str:
    """The name by which a member is reached."""
    own = gen_general_name(of.metadata.name, slot.type, str(slot.index))
    below = f".{of.metadata.name}" if of.job.services == "shared" else ""
    return f"{own}{below}.{of.metadata.namespace}.svc"


def port(of: Resource, kind: str) -> int:
    """The port on which members of a type listen: the template's of the kind's name, or the kind's own."""
    for container in containers(of.templates[kind]):
        for each in container.get("ports") or []:
            if each.get("name") == of.kind.port_name and each.get("containerPort"):
                return int(each["containerPort"])
    return of.kind.port


def containers(template: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The containers of a template."""
    return list((template.get("spec") or {}).get("containers") or [])


def rank(of: Resource, slot: Slot) -> int:
    """The slot's number among all slots of the job, in the order of its types."""
    before = 0
    for each in of.job.types:
        if each.name == slot.type:
            break
        before += each.replicas
    return before + slot.index


def first(of: Resource) -> Slot:
    """The slot of rank 0; a job without slots has the first type's."""
    kind = next((each for each in of.job.types if each.replicas), of.job.types[0])
    return Slot(kind.name, 0)


def is_master(of: Resource, slot: Slot) -> bool:
    """Whether a slot leads the others: a master, or the very first one where there is none."""
    masters = [each.name for each in of.job.types if each.name in of.kind.masters and each.replicas]
    return slot.type in masters if masters else slot == _leader(of)


def _leader(of: Resource) -> Slot:
    """The slot that leads where there is no master: the first of the types that decide, as worker 0."""
    decide = [each.name for each in of.job.types if each.name in of.kind.success.types and each.replicas]
    return Slot(decide[0], 0) if decide else first(of)


def _farmd(of: Resource, slot: Slot, attempt: int) -> Env:
    leader = first(of)
    return {
        "FARMD_JOB": of.metadata.name,
        "FARMD_TYPE": slot.type,
        "FARMD_INDEX": str(slot.index),
        "FARMD_RANK": str(rank(of, slot)),
        "FARMD_WORLD_SIZE": str(of.job.size),
        "FARMD_ATTEMPT": str(attempt),
        "FARMD_MASTER_ADDRESS": address(of, leader),
        "FARMD_MASTER_PORT": str(port(of, leader.type)),
    }


def _tf(of: Resource, slot: Slot) -> Env:
    """``TF_CONFIG``; nothing for a job of one member, which is not distributed."""
    if of.job.size <= 1:
        return {}
    hosts = {each.name.lower(): _hosts(of, each) for each in of.job.types}
    own = slot.type.lower()
    task = {"type": own, "index": slot.index}
    if not of.training.enable_dynamic_worker:
        return {"TF_CONFIG": json.dumps({"cluster": hosts, "task": task, "environment": "cloud"})}
    # A worker that comes later is unknown to the others, so each knows itself and the servers alone.
    mine = hosts[own][slot.index]
    servers = {"ps": [mine], "worker": hosts.get("ps", [])}.get(own, [])
    sparse = {"worker": {str(slot.index): mine} if own == "worker" else {}, "ps": servers}
    return {"TF_CONFIG": json.dumps({"cluster": sparse, "task": task})}


def _hosts(of: Resource, kind: ReplicaType) -> list[str]:
    slots = (Slot(kind.name, index) for index in range(kind.replicas))
    return [f"{address(of, each)}:{port(of, kind.name)}" for each in slots]


def _torch(of: Resource, slot: Slot) -> Env:
    """The variables of ``torch.distributed`` and of ``torchrun``, which reads ``PET_…``."""
    elastic = of.training.elastic_policy
    env = {"PYTHONUNBUFFERED": "1", **_master(of, slot), "PET_NPROC_PER_NODE": of.training.processes}
    if elastic is None:
        return {**env, "PET_NNODES": str(of.job.size)}
    workers = of.job.type(WORKER)
    assert workers is not None
    host = gen_general_name(of.metadata.name, WORKER, "0")
    return {**env, **rendezvous(elastic, host, port(of, WORKER), workers.replicas)}


def _master(of: Resource, slot: Slot) -> Env:
    """Where the master is, and which rank the slot has; nothing where there is no master."""
    if (leader := master(of)) is None:
        return {}
    number, size = str(rank(of, slot)), str(of.job.size * of.training.factor)
    where = {"MASTER_ADDR": _name(of, leader), "MASTER_PORT": str(port(of, leader.type))}
    shared = {f"PET_{variable}": value for variable, value in where.items()}
    return {**where, **shared, "WORLD_SIZE": size, "RANK": number, "PET_NODE_RANK": number}


def master(of: Resource) -> Slot | None:
    """The master that leads; None: there is none."""
    leader = first(of)
    return leader if leader.type in of.kind.masters else None


def greeting(of: Resource, slot: Slot) -> str:
    """The name that a member waits for before it starts; empty: it waits for none."""
    leader = master(of) if of.kind.greets_master else None
    return "" if leader is None or slot.type in of.kind.masters else _name(of, leader)


def _name(of: Resource, slot: Slot) -> str:
    return gen_general_name(of.metadata.name, slot.type, str(slot.index))
