"""Fixes findings that a person named, by audited transactions that check the finding's reasons again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farmd.commands.mutation import Call, Change, Mutation, Scalar, registered
from farmd.doctor import reservations
from farmd.doctor.model import Finding, Release, Removal
from store import operations, registration
from store.errors import Conflict, InputInvalid, NotFound
from store.operations import MAX_OPERATIONS, Operation

ACTION = "doctor.remove"
RESTORE = "doctor.restore"
FREE = "doctor.free"
# The operations besides the removals: the check of the cluster, and the audit record.
OVERHEAD = 2


def choose(findings: Sequence[Finding], targets: Sequence[str]) -> list[Finding]:
    """The findings that a person chose, by code, object or a part of an object such as an owner's id.

    Raises:
        NotFound: a target fits none.
        InputInvalid: it fits only what the doctor cannot take away itself.
    """
    chosen: dict[tuple[str, str], Finding] = {}
    for target in targets:
        fitting = [finding for finding in findings if finding.fits(target)]
        if not fitting:
            codes = ", ".join(sorted({finding.code for finding in findings if finding.fixable})) or "nothing"
            raise NotFound(f"doctor: no finding matches {target!r}", hint=f"fixable now: {codes}")
        fixable = [finding for finding in fitting if finding.fixable]
        if not fixable:
            raise InputInvalid(
                f"{fitting[0].object}: {fitting[0].code} cannot be fixed from here",
                field="fix",
                hint=fitting[0].fix,
            )
        chosen |= {(finding.code, finding.object): finding for finding in fixable}
    return list(chosen.values())


async def mutations(call: Call, findings: Sequence[Finding]) -> list[Mutation]:
    """One mutation for each item, or several if its changes exceed a transaction.

    Room is given back last, once no node is told to run the pod any more. If the owner exists, it is given
    back at once, because the owner would otherwise place its next pod there first.

    Raises:
        NotRegistered: no cluster is registered, so nothing can be proven to be absent.
    """
    cluster = await registered(call)
    chosen = [finding.removal for finding in findings if finding.removal is not None]
    items: dict[tuple[str, str], list[Removal]] = {}
    for removal in chosen:
        if removal.keys or removal.restores or removal.frees or removal.entries:
            items.setdefault((removal.kind, removal.id), []).append(removal)
    removed = [
        _mutation(call, cluster, batch)
        for removals in items.values()
        for batch in _batches(removals, MAX_OPERATIONS - OVERHEAD)
    ]
    releases = [one.release for one in chosen if one.release is not None and not one.at_once]
    registers = [finding.registers for finding in findings if finding.registers]
    return [
        *[await _registration(call, cluster, key) for key in registers],
        *removed,
        *reservations.mutations(cluster, ACTION, releases),
    ]


async def _registration(call: Call, cluster: Operation, key: str) -> Mutation:
    """Create the sentinel of a tree that was never written, at a person's request (R20).

    Raises:
        Conflict: something stands there by now, so an absence is not what was looked at.
    """
    name, tree = key.removeprefix(call.keys.prefix), key.removesuffix(".present")
    if (await call.client.keys(tree, mode="consistent")).items:
        raise Conflict(f"{name}: something else is there by now", hint="run farmctl doctor again")
    change = Change(
        "meta",
        name,
        name,
        "doctor.register",
        before={"exists": False},
        after={"exists": True},
        details=(f"from then on an empty answer for {name.partition('/')[0]} is trusted",),
        destructive=True,
    )
    cluster_id = await registration.cluster_id(call.client, call.keys)
    return Mutation(change, (cluster, registration.sentinel(key, cluster_id)))


def _batches(removals: Sequence[Removal], room: int) -> Iterable[list[Removal]]:
    batch: list[Removal] = []
    for removal in removals:
        if batch and len(_guarded([*batch, removal])) > room:
            yield batch
            batch = []
        batch.append(removal)
    yield batch


def _guarded(removals: Sequence[Removal]) -> list[Operation]:
    absent = dict.fromkeys(key for removal in removals for key in removal.absent)
    gone = dict(key for removal in removals for key in removal.keys)
    written = (write for removal in removals for write in (*removal.restores, *removal.frees))
    room = _room(removals)
    return [
        *(operations.check_not_exists(key) for key in absent),
        *dict.fromkeys(proof for removal in removals for proof in removal.proofs),
        *(operations.delete_cas(key, index) for key, index in gone.items()),
        *(operations.cas(key, value, index) for key, index, value in written),
        *(operation for removal in removals for _, operation in removal.entries),
        *([reservations.given_back(room)[0]] if room else []),
    ]


def _room(removals: Sequence[Removal]) -> list[Release]:
    """The room that is given back in the transaction of the removals, all of one node."""
    return [one.release for one in removals if one.release is not None and one.at_once]


def _mutation(call: Call, cluster: Operation, removals: Sequence[Removal]) -> Mutation:
    first = removals[0]
    lines = [key.removeprefix(call.keys.prefix) for removal in removals for key, _ in removal.keys]
    restored = [key.removeprefix(call.keys.prefix) for removal in removals for key, *_ in removal.restores]
    freed = [key.removeprefix(call.keys.prefix) for removal in removals for key, *_ in removal.frees]
    lines += [name for removal in removals for name, _ in removal.entries]
    room = _room(removals)
    given_back = reservations.given_back(room)[1] if room else []
    counts = {"records": len(lines), "invalid": len(restored), "bound": len(freed)}
    before: dict[str, Scalar] = {name: n for name, n in counts.items() if n or name == "records"}
    change = Change(
        first.kind,
        first.id,
        first.id,
        RESTORE if restored else FREE if freed else ACTION,
        before=before,
        after=dict.fromkeys(before, 0),
        details=(
            *(f"removes {line}" for line in lines),
            *(f"restores {line}" for line in restored),
            *(f"frees {line}" for line in freed),
            *given_back,
        ),
        destructive=True,
        removed=tuple(removal.pod for removal in removals if removal.pod),
    )
    return Mutation(change, (cluster, *_guarded(removals)))
