"""The commands of people on a rollout, and its view while it is in progress."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from msgspec.structs import replace

from farmd import kinds, overview
from farmd.commands import difference, specs, waiting
from farmd.commands.mutation import Call, Change, Mutation, Scalar
from farmd.commands.noun import Noun
from farmd.commands.waiting import Look, Report
from farmd.commands.waiting import fitting as fitted
from farmd.rollout import nodes, noun, view
from farmd.rollout.creation import begin, toward, with_floor
from farmd.rollout.noun import ROLLOUT, controller
from farmd.rollout.stages import check_floor, goals, minimum, stages, unrested
from farmd.rollout.view import RolloutView
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store import codec, manifests, operations
from store.entry import Stored
from store.errors import Conflict, NotFound, RecordInvalid
from store.families import DAEMONSETS, RCS
from store.named import Listing
from store.operations import Operation
from store.policies import Policy, staged
from store.rcs import ReplicationController
from store.rollouts import KIND, Ended, Ending, History, Rollout, RolloutState, RolloutStatus
from store.status import StatusStore
from store.words import lasting
from store.work import Work

# Commands on a rollout while it is in progress, and after its end.
#
# Each is a compare-and-set of the record. Every transaction of the worker checks the record's version, so
# what the worker planned before the command is refused (R12, R13).


async def pause(call: Call, target: str) -> Mutation:
    """Stop where it is; the controllers heal themselves meanwhile."""
    return await _say(call, target, "pause", paused=True)


async def resume(call: Call, target: str) -> Mutation:
    """Continue after a pause or a halt."""
    stored = await noun.ROLLOUT.find(call, target)
    return _said(call, stored, "resume", paused=False, resumed=stored.record.resumed + 1)


async def abort(call: Call, target: str) -> Mutation:
    """End it where it is: both controllers stay, with the pods that they have.

    Raises:
        Conflict: it is a daemon set's, which has one version in the end.
    """
    stored = await noun.ROLLOUT.find(call, target)
    if nodes.over_nodes(stored.record):
        text = f"rollout {stored.record.name!r} is of a daemon set, which has one version in the end"
        raise Conflict(text, id=stored.record.id, hint=f"farmctl rollout revert {stored.record.name}")
    return await _say(call, target, "abort", wish="abort", paused=False)


async def revert(call: Call, target: str, *, to: int = 0) -> Mutation:
    """Go back to the old version at once. After the end, begin a rollout to the previous version.

    ``to``: to what ran before that rollout of the history, which counts from 1 and begins with the newest.

    Raises:
        NotFound: there is none, and nothing to go back to. Conflict: ``to``, and one is under way.
    """
    try:
        stored = await noun.ROLLOUT.find(call, target)
    except NotFound:
        return await _revert_ended(call, target, to)
    if to:
        text = f"rollout {stored.record.name!r} is under way, so --to has no place to begin from"
        raise Conflict(text, id=stored.record.id, hint=f"farmctl rollout revert {stored.record.name} ends it")
    return _said(call, stored, "revert", wish="revert", paused=False)


async def approve(call: Call, target: str, stage: int | None = None, *, everything: bool = False) -> Mutation:
    """Let the next stage begin, or all that are left; ``stage`` is the one that the caller saw.

    Raises:
        Conflict: it asks for no word now, or for another stage's.
    """
    stored = await noun.ROLLOUT.find(call, target)
    if everything:
        number = (
            len(stages(stored.record.policy))
            if nodes.over_nodes(stored.record)
            else len(goals(stored.record, minimum(stored.record)))
        )
        return _said(call, stored, "approve", approved=number)
    status = await StatusStore(call.client, call.keys, KIND, RolloutStatus).get(stored.record.id)
    if status is None or not status.asks:
        raise Conflict(f"rollout {stored.record.name!r} is not waiting for approval", id=stored.record.id)
    if stage not in {None, status.asks}:
        raise Conflict(
            f"rollout {stored.record.name!r} is waiting for approval of stage {status.asks}, not {stage}",
            id=stored.record.id,
        )
    return _said(call, stored, "approve", approved=status.asks)


class Difference(msgspec.Struct, frozen=True):
    """What a rollout changes: ``before`` and ``after`` are digests, ``pod`` has a line for each field that
    differs, ``policy`` every field, also where nobody said it."""

    name: str
    before: str
    after: str
    started_from: int
    replicas: int
    pod: list[str]
    policy: dict[str, Any]


async def difference_of(call: Call, target: str) -> Difference:
    """What a rollout that is under way changes.

    Raises:
        NotFound: there is none, or the new manifest is gone.
    """
    rollout = (await noun.ROLLOUT.look(call, target)).record
    after = await manifests.read(call.client, call.keys, rollout.to_manifest)
    try:
        before = await manifests.read(call.client, call.keys, rollout.from_manifest)
    except (NotFound, RecordInvalid):
        before = None
    return Difference(
        rollout.name,
        rollout.from_manifest,
        rollout.to_manifest,
        rollout.started_from,
        rollout.replicas,
        difference.manifest_lines(before, after),
        {name: msgspec.to_builtins(getattr(rollout.policy, name)) for name in Policy.__struct_fields__},
    )


async def sight(call: Call, row: overview.Row[Rollout]) -> RolloutView:
    """What people see of a rollout."""
    rollout, status = row.record, row.status
    if nodes.over_nodes(rollout):
        sized = nodes.sized(rollout, status) if isinstance(status, RolloutStatus) else rollout
        return RolloutView(sized, status, row.state, row.owner, row.reason, rollout.name, rollout.name)
    old, new = [await _name(call, rc) for rc in (rollout.old, rollout.new)]
    return RolloutView(rollout, row.status, row.state, row.owner, row.reason, old, new)


async def _name(call: Call, rc: str) -> str:
    """The name of a controller, or its id where that cannot be read."""
    try:
        return (await noun.controller().records(call.client, call.keys).get(rc)).record.name
    except (NotFound, RecordInvalid):
        return rc


async def phase(call: Call, rollout: Rollout) -> tuple[RolloutState | None, Operation]:
    """How far its worker is, and a check that this is still so."""
    key = call.keys.work(KIND, rollout.id)
    entry = await call.client.read(key)
    if entry is None:
        return None, operations.check_not_exists(key)
    found = codec.decode(Work, entry.value, key).rollout
    return found, operations.check_index(key, entry.modify_index)


async def history(call: Call, name: str) -> list[Ended]:
    """Past rollouts of the controller and the daemon set of a name, newest first."""
    return [each.record for each in (await _over(call, name)).items]


async def _over(call: Call, name: str) -> Listing[Ended]:
    found = [await History(call.client, call.keys, of).read(name) for of in (RCS.name, DAEMONSETS.name)]
    items = sorted((each for one in found for each in one.items), key=lambda each: -each.record.ended)
    return Listing(items, [error for one in found for error in one.broken])


async def past(call: Call, name: str) -> tuple[list[Ended], list[str]]:
    """The history of a controller, and one line for each record that does not decode.

    Raises:
        NotFound: there is neither such a controller nor a history of that name.
    """
    found = await _over(call, name) if name and "/" not in name else Listing[Ended]([], [])
    if not (found.items or found.broken):
        await noun.controller().look(call, name)
    return [each.record for each in found.items], found.mistakes


async def _revert_ended(call: Call, target: str, to: int) -> Mutation:
    over = await history(call, target)
    if not to and over:  # a controller and a daemon set may have one name: the last one that had a rollout
        over = [each for each in over if each.of == over[0].of]
    if to > len(over):
        text = f"to: found {to}, expected a number of farmctl rollout history {target}, which has {len(over)}"
        raise NotFound(text, kind=KIND, id=target)
    if over and over[0].outcome == "aborted" and not (to or over[0].of != RCS.name):
        return await _revert_aborted(call, over[0])
    last = over[to - 1] if to else next((ended for ended in over if ended.outcome == "done"), None)
    if last is None:
        raise NotFound(f"rollout {target!r} does not exist, and history has no version to revert to")
    of: Noun[Any, Any] = kinds.asked(last.of)
    stored, held = await of.editable(call, target, membership=True, by_name=True)
    now, policy = stored.record, stored.record.rollout or Policy()
    if now.manifest == last.old.manifest:
        raise Conflict(f"{of.words.one} {target!r} has version {now.manifest[:12]} already", id=now.id)
    body = await manifests.read_body(call.client, call.keys, last.old.manifest)
    wanted = msgspec.structs.replace(now, manifest=last.old.manifest)
    ensured = (manifests.ensure(call.keys, body),)
    return await begin(call, stored, wanted, held, ensured, retry=True, policy=unrested(policy))


async def _revert_aborted(call: Call, aborted: Ended) -> Mutation:
    """From the new controller, which an abort left with its pods, back to the old one with all of them.

    It bears the name of the rollout that was aborted, so that both have one history.
    """
    records = noun.controller().records(call.client, call.keys)
    try:
        new = (await records.get(aborted.new)).record
    except NotFound:
        count = aborted.started_from or aborted.replicas
        raise NotFound(
            f"rollout {aborted.name!r} was aborted, and its new controller is gone",
            kind=KIND,
            id=aborted.id,
            hint=f"farmctl rc set-replicas {aborted.name} {count} gives the old one its pods",
        ) from None
    policy, count = unrested(new.rollout or Policy()), aborted.started_from
    return await toward(call, new.id, aborted.old.id, replicas=count, policy=policy, name=aborted.name)


async def _say(call: Call, target: str, word: str, **fields: Any) -> Mutation:
    return _said(call, await noun.ROLLOUT.find(call, target), word, **fields)


def _said(call: Call, stored: Stored[Rollout], word: str, **fields: Any) -> Mutation:
    paused = fields.get("paused", stored.record.paused)
    since = {} if paused == stored.record.paused else {"paused_at": call.clock.now() if paused else 0.0}
    made = noun.ROLLOUT.command(
        call, stored, word, destructive=word in {"abort", "revert"}, beside=since, **fields
    )
    told = {
        "revert": f"all pods go back to version {stored.record.from_manifest[:12]}",
        "abort": "ends where it is: both controllers stay, with the pods that they have",
    }
    details = (told[word],) if word in told and made.needed else ()
    return dataclasses.replace(made, change=dataclasses.replace(made.change, details=details))


# Another number of replicas during a rollout: the worker adds or removes pods of both versions.


async def scale(call: Call, target: str, replicas: int) -> Mutation:
    """Change the final number of pods, which is also that of the old version if the rollout goes back.

    A default floor follows the number. A floor that a person chose stays, and must be below the new number.

    Raises:
        InputInvalid: no such number, or no pod could ever leave.
        Conflict: it goes back, or ends.
    """
    specs.check_count(replicas, "replicas", lowest=1)
    stored = await ROLLOUT.find(call, target)
    if nodes.over_nodes(stored.record):
        raise Conflict(f"rollout {stored.record.name!r} is of a daemon set, whose nodes are its count")
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


# Waiting for the end of a rollout, with its progress.

ASKED: dict[str, Ending] = {"rollout.revert": "reverted", "rollout.abort": "aborted"}
"""How a rollout ends if it ends as was asked; otherwise with the new version."""


async def end(call: Call, change: Change, timeout: float, report: Report) -> None:
    """Wait until a rollout ends as the change asked: done, reverted or aborted.

    Raises:
        EndedOtherwise: it ended in another way.
        WaitTimeout: it is not over; it goes on.
    """

    async def now() -> Look:
        return await look(call, change)

    async def late(now: Look) -> WaitTimeout:
        text = f"rollout {change.name!r} is not over after {timeout:g} s: {waiting.describe(now)}"
        return WaitTimeout(text, hint=f"farmctl rollout status {change.name}")

    await waiting.until(call, now, lambda now, _: now.state == "ended", late, timeout, report)
    over = await _ended(call, change)
    if over.outcome != ASKED.get(change.action, "done"):
        raise EndedOtherwise(
            f"rollout {change.name!r} was {over.outcome}: {over.reason}",
            hint=f"farmctl rollout history {change.name}",
        )


async def look(call: Call, change: Change) -> Look:
    """How far it is, also as the lines of ``rollout status``."""
    found = Look(name=change.name, noun="rollout", state="ended", desired=0, counts=False)
    try:
        records = ROLLOUT.records(call.client, call.keys)
        row: overview.Row[Rollout] = await overview.row(call.client, call.keys, records, change.id)
        seen, at = await sight(call, row), call.clock.now()
    except NotFound:
        over = await _ended(call, change)
        told = f"{over.outcome}: {over.reason}"
        end = [f"{over.name}  {over.outcome} after {lasting(over.ended - over.began)}: {over.reason}"]
        return replace(found, reason=told, draw=lambda width: fitted(end, width))
    status = row.status if isinstance(row.status, RolloutStatus) else None
    return replace(
        found,
        state=status.progress if status is not None else row.state,
        desired=seen.rollout.replicas,
        available=status.new.available if status is not None else 0,
        reason=row.news,
        owner=row.owner,
        draw=lambda width: view.lines(seen, at, width),
    )


async def _ended(call: Call, change: Change) -> Ended:
    found = [each for each in await history(call, change.name) if each.id == change.id]
    if not found:
        raise NotFound(
            f"rollout {change.name!r} no longer exists, and history does not have it", id=change.id
        )
    return found[0]
