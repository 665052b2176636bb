"""What a person asks for with ``rollout create``: a file, flags, or both; flags win over the file.

A policy that is said in part changes that part alone of the controller's own policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from farmd.commands import difference, documents
from farmd.commands.mutation import Call, Mutation
from farmd.commands.resolving import Resolve, unresolved
from farmd.commands.specs import SpecFile, check_count
from farmd.rollout.creation import begin, toward
from farmd.rollout.noun import controller
from farmd.rollout.stages import stages
from store import codec
from store.errors import InputInvalid
from store.manifests import Manifest
from store.policies import Policy, Stage, staged
from store.rcs import ReplicationController
from store.rollouts import Rollout

# p2's rolling updates as rollouts: the JSON of ``pkg/roll/fields.Update``, accepted as it is.


class Update(msgspec.Struct, rename="pascal", kw_only=True, frozen=True):
    """The fields that p2 writes. ``ID`` and ``RollDelay`` are ignored: a rollout has an id of its own, and
    a stage's rest does what the delay was for.
    """

    id: str = msgspec.field(name="ID", default="")
    old_rc: str = msgspec.field(name="OldRC", default="")
    new_rc: str = msgspec.field(name="NewRC", default="")
    desired_replicas: int = 0
    minimum_replicas: Annotated[int, msgspec.Meta(ge=0)] = 0
    leave_old: bool = False
    roll_delay: int = 0


@dataclass(frozen=True, slots=True)
class Rolling:
    """A p2 rolling update, as farmd carries it out."""

    old: str
    new: str
    replicas: int
    policy: Policy


def is_p2(data: Any) -> bool:
    """Whether a document is one of p2's, by the names of its fields."""
    return isinstance(data, dict) and not data.keys().isdisjoint(Update.__struct_encode_fields__)


def from_p2(data: Any, source: str) -> Rolling:
    """The rollout for a p2 update: one stage, within the update's minimum.

    Raises:
        InputInvalid: not such an update, or a field is missing.
    """
    found = codec.parse_input(Update, data, source)
    for name, value in (("OldRC", found.old_rc), ("NewRC", found.new_rc)):
        if not value:
            raise InputInvalid(f"{source}: {name}: missing, expected a controller's id", field=name)
    check_count(found.desired_replicas, f"{source}: DesiredReplicas", lowest=1)
    if found.minimum_replicas >= found.desired_replicas:
        both = f"{found.minimum_replicas} of {found.desired_replicas}"
        raise InputInvalid(
            f"{source}: MinimumReplicas: found {both}, expected less: nothing could ever leave",
            field="MinimumReplicas",
        )
    policy = Policy(minimum=found.minimum_replicas, stages=["100%"], leave_old=found.leave_old)
    return Rolling(found.old_rc, found.new_rc, found.desired_replicas, policy)


class RolloutFile(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A document of ``rollout create -f``: from the controller ``name`` to the controller ``to``, or to
    another ``pod``."""

    name: str
    to: str = ""
    pod: Manifest | None = None
    replicas: int | None = None
    service: str = ""
    rollout: Policy | None = None


FILE = SpecFile(spec=RolloutFile, record=Rollout, kept={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``policy`` replaces the controller's own; ``changes`` are fields in place of those of the policy, as a
    file would say them; ``bake`` and ``approve`` change each stage that they concern."""

    rc: str
    to: str = ""
    pod: Manifest | None = None
    replicas: int | None = None
    policy: Policy | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    bake: float | None = None
    approve: bool = False
    service: str = ""
    retry: bool = False


def from_file(text: str, source: str) -> Asked:
    """What a file asks for: one of ours, or a rolling update of p2 as it is.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    found = documents.parse(text, source)
    if len(found) > 1:
        raise InputInvalid(f"{source}: found {len(found)} documents, expected one", source=source)
    (_, data), *_ = found
    if is_p2(data):
        update = from_p2(data, source)
        return Asked(rc=update.old, to=update.new, replicas=update.replicas, policy=update.policy)
    spec = FILE.parse(data, source)
    return Asked(
        rc=spec.name,
        to=spec.to,
        pod=spec.pod,
        replicas=spec.replicas,
        policy=spec.rollout,
        service=spec.service,
    )


def pod_of(text: str, source: str, resolve: Resolve = unresolved) -> Manifest:
    """The manifest of a file that has only that, or has it as its ``pod``, as the file of a controller.
    ``resolve`` replaces its references.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    found = documents.parse(text, source)
    data = found[0][1]
    pod = data["pod"] if isinstance(data, dict) and "pod" in data else data
    spec = FILE.parse(resolve({"name": "pod", "pod": pod}, source), source)
    if len(found) > 1 or spec.pod is None:
        raise InputInvalid(f"{source}: found no pod, or several, expected one", source=source)
    return spec.pod


async def create(call: Call, asked: Asked) -> Mutation:
    """Begin the rollout that a file or flags describe.

    Raises:
        InputInvalid: it says not both from where and to where, or its policy cannot work.
        NotFound, Conflict, Locked: as ``begin`` and ``toward``.
    """
    if not asked.rc:
        raise InputInvalid("rc: missing, expected the controller whose pods are to change", field="rc")
    if bool(asked.to) == (asked.pod is not None):
        found = "both a controller and a manifest" if asked.to else "neither a controller nor a manifest"
        raise InputInvalid(
            f"to: found {found}, expected one of them (--to RC or --manifest FILE)", field="to"
        )
    stored, held = await controller().editable(call, asked.rc, membership=True)
    policy = said(asked, stored.record)
    if asked.pod is None:
        return await toward(
            call, stored.record.id, asked.to, replicas=asked.replicas, policy=policy, service=asked.service
        )
    spec = RolloutFile(name=stored.record.name, pod=asked.pod)
    ensured = await difference.ensured(call, spec, stored.record)
    wanted = msgspec.structs.replace(stored.record, manifest=ensured.sha, pod_id=asked.pod.id)
    difference.refuse_other_pod(stored.record, wanted)
    if asked.replicas is not None:
        wanted = msgspec.structs.replace(wanted, replicas_desired=asked.replicas)
    lines = await difference.pod_lines(call, stored.record, spec)
    begun = await begin(
        call,
        stored,
        wanted,
        held,
        ensured.writes,
        retry=asked.retry,
        policy=policy,
        pod=asked.pod,
        service=asked.service,
    )
    return replace(begun, change=replace(begun.change, details=(*begun.change.details, *lines)))


def said(asked: Asked, rc: ReplicationController) -> Policy:
    """The policy with what was said in part."""
    policy = asked.policy or rc.rollout or Policy()
    if asked.changes:
        data = msgspec.to_builtins(policy) | asked.changes
        if "stages" in asked.changes:
            data.pop("ratio", None)  # it stands in place of stages
        policy = codec.parse_input(Policy, data, "policy")
    if asked.bake is not None or asked.approve:
        if policy.ratio is not None:
            found = "approvals" if asked.bake is None else f"a rest of {asked.bake:g} s"
            raise InputInvalid(
                f"rollout.ratio: found {policy.ratio} with {found}, expected stages, which can have that",
                field="ratio",
                hint="--stages 1,50%,100% beside it; a ratio only sets a pace",
            )
        policy = msgspec.structs.replace(policy, stages=_rested(stages(policy), asked.bake, asked.approve))
    return policy


def _rested(before: list[Stage], bake: float | None, approve: bool) -> list[Stage | int | str]:
    """Each stage but the last rests, each but the first waits for a word."""
    last = len(before) - 1
    return [
        msgspec.structs.replace(
            stage,
            bake=stage.bake if bake is None or number == last else bake,
            approve=stage.approve or (approve and number > 0),
        )
        for number, stage in enumerate(map(staged, before))
    ]
