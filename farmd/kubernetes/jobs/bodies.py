"""The pods and services of a job in Kubernetes, as they are sent to the API server.

What must never break: a body depends on the job, the slot and the attempt alone, so that whoever creates a
member creates the same one; what people wrote into a template stays, but for names, labels and the restart
policy that make it a member.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from farmd.jobs.facts import ReplicaType, Restart, ServiceKey, Slot
from farmd.kubernetes.jobs.controller import JobController
from farmd.kubernetes.jobs.names import (
    ATTEMPT_ANNOTATION,
    TEMPLATE_ANNOTATION,
    gen_general_name,
    gen_labels,
    gen_owner_reference,
    slot_labels,
)
from farmd.kubernetes.jobs.protocols import ControllerInterface
from farmd.kubernetes.jobs.resource import Resource
from farmd.kubernetes.jobs.training import WORKER, rendezvous
from farmd.kubernetes.objects import KubePod

# Finds types whose template was changed while members of it run.
#
# The API server cannot refuse such a change, because templates keep every field. What must never break:
# members that run together are of one template, so none is created until the change is taken back, or the
# job was stopped.

_OVER = ("Succeeded", "Failed")


def digest(of: Resource, name: str) -> str:
    """What the members of a type bear of their template: 16 hex digits of its content, in any order."""
    return hashlib.sha256(msgspec.json.encode(of.templates[name], order="sorted")).hexdigest()[:16]


def altered(engine: JobController, of: Resource, pods: Sequence[KubePod]) -> tuple[str, ...]:
    """The types with running members that were made from another template. Members from earlier versions of
    farmd do not record theirs.
    """
    return tuple(
        kind.name
        for kind in of.job.types
        if _bear(engine.filter_pods_for_replica_type(pods, kind.name)) - {digest(of, kind.name)}
    )


def _bear(pods: Iterable[KubePod]) -> set[str]:
    live = (each for each in pods if not each.metadata.terminating and each.status.phase not in _OVER)
    return {each.metadata.annotations.get(TEMPLATE_ANNOTATION, "") for each in live} - {""}


# What the members of a job in Kubernetes are told of each other, in the words of their framework.
#
# An address is that of the member's own service, or its name below the service that all members share.
# Names resolve before members are ready, and stay the same for all attempts.

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


# A pod of the policy exit-code is not started again in place: the controller looks at its code first.
_RESTARTS: Mapping[Restart, str] = {
    "never": "Never",
    "exit-code": "Never",
    "on-failure": "OnFailure",
    "always": "Always",
}


def pod_body(
    controller: ControllerInterface, of: Resource, slot: Slot, attempt: int, init_image: str = ""
) -> dict[str, Any]:
    """The pod of a slot's attempt; ``init_image``: see ``greeting``."""
    template = msgspec.json.decode(msgspec.json.encode(of.templates[slot.type]))  # a copy
    meta: Mapping[str, Any] = template.get("metadata") or {}
    labels = {**(meta.get("labels") or {}), **slot_labels(controller, of.metadata.name, slot)}
    if is_master(of, slot):
        labels[of.kind.labels.role] = "master"
    spec: dict[str, Any] = template.get("spec") or {}
    kind = of.job.type(slot.type)
    assert kind is not None
    spec["restartPolicy"] = _RESTARTS[kind.restart]
    name = gen_general_name(of.metadata.name, slot.type, str(slot.index))
    if of.job.services == "shared":
        spec.setdefault("hostname", name)
        spec.setdefault("subdomain", of.metadata.name)
    env = [{"name": key, "value": value} for key, value in environment(of, slot, attempt).items()]
    for container in spec.get("containers") or []:
        if gets_environment(of, container.get("name", "")):
            container["env"] = _with(container.get("env") or [], env)
        if of.kind.port_name and container.get("name") == of.kind.container:
            container["ports"] = _listening(of, container.get("ports") or [])
    if init_image and (master := greeting(of, slot)):
        waits = _greeter(of.kind.greets_master, init_image, master)
        spec["initContainers"] = [*(spec.get("initContainers") or []), waits]
    annotations = {
        **(meta.get("annotations") or {}),
        ATTEMPT_ANNOTATION: str(attempt),
        TEMPLATE_ANNOTATION: digest(of, slot.type),
    }
    own = {"name": name, "namespace": of.metadata.namespace, "labels": labels, "annotations": annotations}
    if finalizers := meta.get("finalizers"):
        own["finalizers"] = finalizers
    own["ownerReferences"] = [msgspec.to_builtins(gen_owner_reference(controller, of))]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec}


def _listening(of: Resource, ports: list[Any]) -> list[Any]:
    """The ports of the container that does the work, with the kind's own where people name none."""
    if any(each.get("name") == of.kind.port_name for each in ports):
        return ports
    return [*ports, {"name": of.kind.port_name, "containerPort": of.kind.port}]


def _greeter(name: str, image: str, master: str) -> dict[str, Any]:
    """An init container that waits, as long as it takes, until the master's name leads to its pod."""
    command = f"until nslookup {master}; do echo waiting for {master}; sleep 2; done"
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
        "resources": {
            "requests": {"cpu": "50m", "memory": "10Mi"},
            "limits": {"cpu": "100m", "memory": "20Mi"},
        },
    }


def _with(own: list[Any], env: list[dict[str, str]]) -> list[Any]:
    """A container's environment with farmd's in front, so that people's own entries may refer to it.

    An entry of people's that has the same name is left out: the member would be told another's place.
    """
    given = {each["name"] for each in env}
    return [*env, *(each for each in own if each.get("name") not in given)]


def service_body(controller: ControllerInterface, of: Resource, key: ServiceKey) -> dict[str, Any]:
    """A slot's service, whose name is its pod's; or the one that all members share, with the job's name."""
    if key is None:
        name, labels = of.metadata.name, gen_labels(controller, of.metadata.name)
        ports = _ports(of, [each.name for each in of.job.types])
    else:
        name = gen_general_name(of.metadata.name, key.type, str(key.index))
        labels = slot_labels(controller, of.metadata.name, key)
        ports = _ports(of, [key.type])
    own = {
        "name": name,
        "namespace": of.metadata.namespace,
        "labels": labels,
        "ownerReferences": [msgspec.to_builtins(gen_owner_reference(controller, of))],
    }
    spec = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": own, "spec": spec}


def _ports(of: Resource, types: list[str]) -> list[dict[str, Any]]:
    """The named ports of the containers that do the work, in their order, and the kind's own."""
    found: dict[str, dict[str, Any]] = {}
    for kind in types:
        for container in containers(of.templates[kind]):
            if of.kind.container in ("", container.get("name")):
                for each in container.get("ports") or []:
                    if each.get("name"):
                        protocol = {"protocol": each["protocol"]} if each.get("protocol") else {}
                        found.setdefault(
                            each["name"], {"name": each["name"], "port": each["containerPort"], **protocol}
                        )
    if of.kind.port_name:
        found.setdefault(of.kind.port_name, {"name": of.kind.port_name, "port": of.kind.port})
    return list(found.values())
