"""What people say of a rollout while it lasts, and after its end.

A word is a compare-and-set of the record, which every transaction of the worker names: what was planned
before the word is refused (R12, R13).
"""

from __future__ import annotations

from typing import Any

import msgspec

from farmd import overview
from farmd.commands import difference
from farmd.commands.mutation import Call, Mutation
from farmd.rollout import noun
from farmd.rollout.creation import begin, toward
from farmd.rollout.stages import goals, minimum, unrested
from farmd.rollout.view import RolloutView
from store import codec, manifests, operations
from store.entry import Stored
from store.errors import Conflict, NotFound, RecordInvalid
from store.named import Listing
from store.operations import Operation
from store.policies import Policy
from store.rollouts import KIND, Ended, History, Rollout, RolloutState, RolloutStatus
from store.status import StatusStore
from store.work import Work


async def pause(call: Call, target: str) -> Mutation:
    """Stop where it is; the controllers heal themselves meanwhile."""
    return await _say(call, target, "pause", paused=True)


async def resume(call: Call, target: str) -> Mutation:
    """Go on after a pause or a halt."""
    stored = await noun.ROLLOUT.find(call, target)
    return _said(call, stored, "resume", paused=False, resumed=stored.record.resumed + 1)


async def abort(call: Call, target: str) -> Mutation:
    """End it where it is: both controllers stay, with the pods that they have."""
    return await _say(call, target, "abort", wish="abort", paused=False)


async def revert(call: Call, target: str, *, to: int = 0) -> Mutation:
    """Go back to the old version at once; after the end: a rollout to the version before.

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


async def approve(call: Call, target: str, *, everything: bool = False, stage: int | None = None) -> Mutation:
    """Let the next stage begin, or all that are left; ``stage`` is the one that the caller saw.

    Raises:
        Conflict: it asks for no word now, or for another stage's.
    """
    stored = await noun.ROLLOUT.find(call, target)
    if everything:
        return _said(call, stored, "approve", approved=len(goals(stored.record, minimum(stored.record))))
    status = await StatusStore(call.client, call.keys, KIND, RolloutStatus).get(stored.record.id)
    if status is None or not status.asks:
        raise Conflict(f"rollout {stored.record.name!r} asks for no approval now", id=stored.record.id)
    if stage not in {None, status.asks}:
        raise Conflict(
            f"rollout {stored.record.name!r} asks for stage {status.asks} now, not {stage}",
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
    rollout = row.record
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
    """The rollouts of a controller that are over, the newest first."""
    return [each.record for each in (await History(call.client, call.keys).read(name)).items]


async def past(call: Call, name: str) -> tuple[list[Ended], list[str]]:
    """The history of a controller, and one line for each record that does not decode.

    Raises:
        NotFound: there is neither such a controller nor a history of that name.
    """
    store = History(call.client, call.keys)
    found = await store.read(name) if name and "/" not in name else Listing[Ended]([], [])
    if not (found.items or found.broken):
        await noun.controller().look(call, name)
    return [each.record for each in found.items], found.mistakes


async def _revert_ended(call: Call, target: str, to: int) -> Mutation:
    over = await history(call, target)
    if to > len(over):
        text = f"to: found {to}, expected a number of farmctl rollout history {target}, which has {len(over)}"
        raise NotFound(text, kind=KIND, id=target)
    if over and over[0].outcome == "aborted" and not to:
        return await _revert_aborted(call, over[0])
    last = over[to - 1] if to else next((ended for ended in over if ended.outcome == "done"), None)
    if last is None:
        raise NotFound(f"rollout {target!r} does not exist, and history knows no version to go back to")
    stored, held = await noun.controller().editable(call, target, membership=True, by_name=True)
    now, policy = stored.record, stored.record.rollout or Policy()
    if now.manifest == last.old.manifest:
        raise Conflict(f"controller {target!r} has version {now.manifest[:12]} already", id=now.id)
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
    return noun.ROLLOUT.command(
        call, stored, word, destructive=word in {"abort", "revert"}, beside=since, **fields
    )
