"""What a compose service takes of its machines, and which machines it may use."""

from __future__ import annotations

import re
from typing import TypeVar

from farmd.compose import schema
from farmd.compose.errors import refuse
from farmd.compose.scalars import word, words
from farmd.deploy.spec import Placement, Resources
from store.containers import Device, DeviceReservation, Ulimit
from store.manifests import Constraint, Spread

T = TypeVar("T")
_RULE = re.compile(r"\s*([^\s=!]+)\s*(==|!=)\s*(\S.*?)\s*")
_LABELS = {"node.hostname": "hostname", "node.platform.os": "os", "node.platform.arch": "arch"}


def resources(where: str, said: schema.Service) -> Resources:
    limits, reserved = said.deploy.resources.limits, said.deploy.resources.reservations
    within = "deploy.resources.limits"
    return Resources(
        cpu=one(where, "cpus", said.cpus, f"{within}.cpus", limits.cpus),
        memory=one(where, "mem_limit", said.mem_limit, f"{within}.memory", limits.memory),
        pids=max(0, one(where, "pids_limit", said.pids_limit, f"{within}.pids", limits.pids)),
        shared_memory=said.shm_size,
        cpu_reservation=reserved.cpus,
        memory_reservation=one(
            where, "mem_reservation", said.mem_reservation,
            "deploy.resources.reservations.memory", reserved.memory,
        ),
        devices=[
            Device(host=each.source, container=each.target, permissions=each.permissions)
            for each in said.devices
            if not _is_cdi(each)
        ],
        device_reservations=_reservations(said),
        ulimits={name: Ulimit(each.soft, each.hard) for name, each in said.ulimits.items()},
    )  # fmt: skip


def one(where: str, key: str, value: T, other_key: str, other: T) -> T:
    """What two keys say that mean the same; 0 and None say nothing."""
    if value and other and value != other:
        refuse(f"{where}.{key}", value, f"as in {other_key} ({word(other)}), or none of the two")
    return other or value


def _reservations(said: schema.Service) -> list[DeviceReservation]:
    cdi = [each.source for each in said.devices if _is_cdi(each)]
    found = [DeviceReservation(driver="cdi", device_ids=cdi)] if cdi else []
    found += [_reservation(each, [*each.capabilities, "gpu"]) for each in said.gpus]
    return found + [
        _reservation(each, each.capabilities) for each in said.deploy.resources.reservations.devices
    ]


def _reservation(said: schema.Gpu, capabilities: list[str]) -> DeviceReservation:
    ids = [word(each) for each in said.device_ids]
    count = -1 if said.count == "all" or (not said.count and not ids) else int(said.count)
    return DeviceReservation(
        driver=said.driver,
        count=count,
        device_ids=ids,
        capabilities=[capabilities],
        options=words(said.options),
    )


def _is_cdi(device: schema.Device) -> bool:
    return "=" in device.source and not device.source.startswith("/")


def placement(where: str, said: schema.Service) -> Placement:
    constraints = []
    for rule in said.deploy.placement.constraints:
        found = _RULE.fullmatch(rule)
        label = _label(found[1]) if found else ""
        if found is None or not label:
            refuse(
                f"{where}.deploy.placement.constraints", rule,
                "a rule such as node.labels.zone == a, on node.hostname, node.labels or node.platform",
            )  # fmt: skip
        constraints.append(Constraint(label, "=" if found[2] == "==" else "!=", [found[3]]))
    spread = []
    for each in said.deploy.placement.preferences:
        if not (label := _label(each.spread)):
            refuse(f"{where}.deploy.placement.preferences", each.spread, "a label such as node.labels.zone")
        spread.append(Spread(label))
    return Placement(
        machines=said.machines,
        max_per_node=said.deploy.placement.max_replicas_per_node,
        constraints=constraints,
        spread=spread,
        tolerations=said.farmd.tolerations,
    )


def _label(name: str) -> str:
    return name.removeprefix("node.labels.") if name.startswith("node.labels.") else _LABELS.get(name, "")
