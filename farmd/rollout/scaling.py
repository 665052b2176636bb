"""Another number of replicas in the middle of a rollout: the worker fills or empties both sides for it."""

from __future__ import annotations

import msgspec

from farmd.commands import specs
from farmd.commands.mutation import Call, Change, Mutation, Scalar
from farmd.rollout.checks import check_floor
from farmd.rollout.commands import phase
from farmd.rollout.creation import with_floor
from farmd.rollout.noun import ROLLOUT, controller
from farmd.rollout.stages import minimum
from store.errors import Conflict, NotFound
from store.policies import Policy, staged
from store.rcs import ReplicationController
from store.rollouts import KIND, Rollout


async def scale(call: Call, target: str, replicas: int) -> Mutation:
    """How many pods there are to be in the end, and how many the old version has if the rollout goes back.

    A floor that nobody chose follows; another one stays, and must be below the new number.

    Raises:
        InputInvalid: no such number, or no pod could ever leave.
        Conflict: it goes back, or ends.
    """
    specs.check_count(replicas, "replicas", lowest=1)
    stored = await ROLLOUT.find(call, target)
    record, (state, unchanged) = stored.record, await phase(call, stored.record)
    if record.wish or (state is not None and state.back):
        word = "ends" if record.wish == "abort" else "goes back"
        hint = f"farmctl rollout status {record.name}; scale the controller afterwards"
        raise Conflict(f"rollout {record.name!r} {word}, and is not scaled", id=record.id, hint=hint)
    wanted = msgspec.structs.replace(
        record,
        replicas=replicas,
        started_from=record.started_from if record.policy.leave_old else replicas,
        policy=await _policy(call, record, replicas),
    )
    check_floor(wanted)
    before: dict[str, Scalar] = {"replicas": record.replicas}
    after: dict[str, Scalar] = {"replicas": replicas}
    if minimum(record) != minimum(wanted):
        before, after = {**before, "minimum": minimum(record)}, {**after, "minimum": minimum(wanted)}
    change = Change(
        KIND,
        record.id,
        record.name,
        "rollout.scale",
        before,
        after,
        destructive=replicas < record.replicas,
    )
    if wanted == record:
        return Mutation(change)
    return Mutation(change, (unchanged, ROLLOUT.records(call.client, call.keys).replace(stored, wanted)))


async def _policy(call: Call, rollout: Rollout, replicas: int) -> Policy:
    policy = rollout.policy
    if policy.stages and isinstance(staged(policy.stages[-1]).to, int):
        last = msgspec.structs.replace(staged(policy.stages[-1]), to="100%")
        policy = msgspec.structs.replace(policy, stages=[*policy.stages[:-1], last])
    try:
        found = await controller().records(call.client, call.keys).get(rollout.old)
    except NotFound:
        return policy
    old: ReplicationController = found.record
    open_ = msgspec.structs.replace(policy, minimum=None)
    if policy.minimum == with_floor(open_, old, rollout.replicas).minimum:
        return with_floor(open_, old, replicas)
    return policy
