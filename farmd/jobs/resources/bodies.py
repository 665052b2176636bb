"""The pods and services of a job in Kubernetes, as they are sent to the API server.

What must never break: a body depends on the job, the slot and the attempt alone, so that whoever creates a
member creates the same one; what people wrote into a template stays, but for names, labels and the restart
policy that make it a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from farmd.jobs.model import Restart, ServiceKey, Slot
from farmd.jobs.names import (
    ATTEMPT_ANNOTATION,
    TEMPLATE_ANNOTATION,
    gen_general_name,
    gen_labels,
    gen_owner_reference,
    slot_labels,
)
from farmd.jobs.ports import ControllerInterface
from farmd.jobs.resources.altered import digest
from farmd.jobs.resources.cluster_env import (
    containers,
    environment,
    gets_environment,
    greeting,
    is_master,
)
from farmd.jobs.resources.resource import Resource

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
