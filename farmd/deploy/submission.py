"""Writing a deployment: its record, and the join of each of its services.

``deployment`` of a service is its lock, which counts as long as that deployment exists. What must never
break: a deployment joins all of its services or none, so what does not fit into one transaction is a draft
until all have joined; services are joined in the order of their ids, so of two that overlap one comes
through; and a draft that ended joins nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from farmd.commands.mutation import Call, Change, Mutation, Scalar, audited, commit, registered
from farmd.deploy.goals import Aim, bodies, joined
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.scene import Scene, holding, services, superseding, taken_over, unless_held
from store import codec, operations
from store.deployments import CATALOG, DEPLOYED, KIND, OUTPUTS, Deployment, Goal
from store.errors import Conflict, OutcomeUnknown, StoreError, TooLarge, TransactionRejected
from store.features import ONE_SHOT
from store.operations import MAX_OPERATIONS, Operation
from store.services import KIND as SERVICE
from store.services import Service, ServiceStore
from store.transaction import Group, pack
from store.words import count_of, listed

MAX_BYTES = 400 * 1024
MAX_RECORD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Submission:
    """A deployment that is ready to be written: its joins, and what it takes from others.

    ``held`` are the services, by id, that others hold now; ``made`` those that it brings into being.
    """

    deployment: Deployment
    change: Change
    joins: tuple[Group[str], ...]
    taken: tuple[Operation, ...] = ()
    held: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()

    def whole(self) -> tuple[Operation, ...]:
        """All joins at once."""
        return (*self.taken, *(each for join in self.joins for each in join.operations))


def prepared(
    call: Call,
    deployment: Deployment,
    aims: Sequence[Aim],
    scene: Scene,
) -> Submission:
    """A deployment with these goals, by what was read; nothing is written.

    Raises:
        Locked: another deployment holds one of the services, and does not wait for a person.
        TooLarge: its record would be too large for the store.
    """
    names = [aim.goal.name for aim in aims]
    unless_held(call, scene, names)
    found = replace(
        deployment,
        goals=[aim.goal for aim in aims],
        labels=_labels(aims),
        needs=[
            DEPLOYED,
            *([ONE_SHOT] if _one_shots(aims, scene) else []),
            *([CATALOG] if any(_catalogs(aim.goal) for aim in aims) else []),
            *([OUTPUTS] if _outputs(aims, scene) else []),
        ],
        by=call.actor,
        reason=call.reason,
        at=call.clock.now(),
    )
    own = operations.create(call.keys.record(KIND, found.id), b"").size()
    size = own + len(DEPLOYMENT.records(call.client, call.keys).create(found)[0].value)
    if size > MAX_RECORD_BYTES:
        raise TooLarge(f"deploy: {size} bytes of {count_of(len(names), 'service')}, expected fewer services")
    ordered = sorted(aims, key=lambda aim: aim.goal.service)
    made = {
        aim.goal.service for aim in aims if aim.goal.name not in scene.records or scene.lost(aim.goal.name)
    }
    return Submission(
        deployment=found,
        change=_change(found),
        joins=tuple(Group(_join(call, found, aim, scene), aim.goal.service) for aim in ordered),
        taken=superseding(call, scene, found.id, names),
        held=frozenset(scene.records[name].record.id for name in taken_over(scene, names)),
        made=frozenset(made),
    )


def _one_shots(aims: Sequence[Aim], scene: Scene) -> bool:
    """Whether a service runs a command once, now or after its way back."""
    before = [scene.released[aim.goal.name] for aim in aims if aim.goal.name in scene.released]
    policies = [each.container.restart.policy for each in before]
    policies += [aim.manifest.restart.policy for aim in aims if aim.manifest is not None]
    return any(policy != "always" for policy in policies)


def _outputs(aims: Sequence[Aim], scene: Scene) -> bool:
    """Whether the output of a service goes somewhere, or its secrets are sealed, now or before."""
    specs = [scene.released[aim.goal.name].container for aim in aims if aim.goal.name in scene.released]
    before = any(spec.sealed or (spec.log is not None and spec.log.to) for spec in specs)
    coming = [aim.manifest for aim in aims if aim.manifest is not None]
    return before or any(each.sealed or each.logs.to for each in coming)


def _catalogs(goal: Goal) -> bool:
    """Whether a version of a service says how it is found in Consul's catalogue."""
    return any(
        version is not None and version.catalog is not None for version in (goal.wanted, goal.previous)
    )


async def at_once(call: Call, submission: Submission) -> Mutation:
    """The deployment and all its joins as one mutation, which begins with the check of the cluster."""
    own = DEPLOYMENT.records(call.client, call.keys).create(submission.deployment)
    return Mutation(submission.change, (await registered(call), *own, *submission.whole()))


async def submit(call: Call, submission: Submission) -> Mutation:
    """Write a deployment; at once, or as a draft that joins its services in batches.

    Raises:
        Locked: another deployment joined one of the services first. Conflict: one of them was changed.
        TooLarge: the deployments from which it takes services over do not fit into one transaction with it.
    """
    mutation = await at_once(call, submission)
    try:
        if _fit([*mutation.operations, audited(call, submission.change)]):
            await commit(call, mutation)
        else:
            await _Draft(call, submission).write(mutation.operations[0])
    except Conflict:
        await _refuse_held(call, submission)
        raise
    return mutation


@dataclass(slots=True)
class _Draft:
    """A deployment that is written in several transactions; a farm ends one that its writer left."""

    call: Call
    submission: Submission

    async def write(self, cluster: Operation) -> None:
        """The draft, its joins, and the word that it is complete; all is taken back if one of them fails.

        Services that others hold change hands with that word, all at once, and join when farms take them.

        Raises:
            TooLarge: the word does not fit into one transaction; nothing was written.
        """
        call, deployment = self.call, self.submission.deployment
        draft = replace(deployment, draft=True)
        records = DEPLOYMENT.records(call.client, call.keys)
        key = call.keys.record(KIND, draft.id)
        words = [*records.create(deployment), *self.submission.taken, audited(call, self.submission.change)]
        if self.submission.taken and not _fit(words):
            raise TooLarge("deploy: too many services to take over from other deployments, expected fewer")
        started = dataclasses.replace(self.submission.change, action="deployment.draft")
        try:
            await self._surely([cluster, *records.create(draft), audited(call, started)], key)
            stored = await records.get(draft.id)
            fence = operations.check_index(key, stored.index)
            for batch in pack(self._joins(), fence=[fence], trailer=self._joined, max_bytes=MAX_BYTES):
                proof = call.keys.record(SERVICE, batch.groups[-1].subject)
                await self._surely(batch.operations, proof)
            word = records.replace(stored, deployment)
            complete = Mutation(self.submission.change, (word, *self.submission.taken))
            await commit(call, complete)
        except BaseException:
            with suppress(StoreError):  # else a farm does it, a minute later
                await self._take_back(key)
            raise

    def _joins(self) -> list[Group[str]]:
        """The joins; of services that others hold, only what they bring along."""
        held, services = self.submission.held, self.call.keys.tree(SERVICE)
        found = []
        for join in self.submission.joins:
            keep = [
                op for op in join.operations if join.subject not in held or not op.key.startswith(services)
            ]
            found += [Group(tuple(keep), join.subject)] if keep else []
        return found

    def _joined(self, joins: list[Group[str]]) -> list[Operation]:
        """The audit record of some joins."""
        goals, held = self.submission.deployment.goals, self.submission.held
        names = {goal.service: goal.name for goal in goals if goal.service not in held}
        own = [names[each.subject] for each in joins if each.subject in names]
        after: dict[str, Scalar] = {"services": ", ".join(own)}
        change = dataclasses.replace(self.submission.change, action="deployment.join", before={}, after=after)
        return [audited(self.call, change)]

    async def _surely(self, wanted: Sequence[Operation], proof: str) -> None:
        """Commit; where no answer came, or a first copy of the transaction may have refused the second, look
        whether the key that proves it bears this deployment's id.
        """
        try:
            await self.call.client.transaction(wanted)
        except (TransactionRejected, OutcomeUnknown) as error:
            entry = await self.call.client.read(proof, mode="consistent")
            if entry is not None and self.submission.deployment.id.encode() in entry.value:
                return
            if isinstance(error, OutcomeUnknown):
                raise
            raise Conflict("a service changed since it was read; nothing was deployed") from error

    async def _take_back(self, key: str) -> None:
        """End the draft, and with it its joins; the services that it brought into being go with it."""
        call, deployment = self.call, self.submission.deployment
        entry = await call.client.read(key, mode="consistent")
        if entry is not None:
            if not codec.decode(Deployment, entry.value, key).draft:
                return  # it was complete after all
            same = operations.delete_cas(key, entry.modify_index)
            name = operations.delete(call.keys.name(KIND, deployment.name))
            ended = audited(call, dataclasses.replace(self.submission.change, action="deployment.abandoned"))
            await call.client.transaction([same, name, ended])
        for goal in deployment.goals:
            record_key = call.keys.record(SERVICE, goal.service)
            record = await call.client.read(record_key) if goal.service in self.submission.made else None
            if record is not None and deployment.id.encode() in record.value:
                gone = [
                    operations.delete_cas(record_key, record.modify_index),
                    operations.delete(call.keys.name(SERVICE, goal.name)),
                ]
                with suppress(TransactionRejected):  # another deployment joined it
                    await call.client.transaction(gone)


def _join(call: Call, deployment: Deployment, aim: Aim, scene: Scene) -> tuple[Operation, ...]:
    """What makes a service belong to a deployment; it names the version of the record that was read."""
    goal, store = aim.goal, ServiceStore(call.client, call.keys)
    body = bodies(call.keys, aim)
    stored = scene.records.get(goal.name)
    record = stored.record if stored is not None else Service(id=goal.service, name=goal.name)
    wanted = joined(record, deployment, goal, aim.manifest, call.clock.now())
    if call.part_of:
        wanted = replace(wanted, part_of=call.part_of, open=list(call.open))
    if stored is None or scene.lost(goal.name):
        return (*body, *store.create(wanted))
    ended = record.deployment and record.deployment not in scene.holding
    gone = [operations.check_not_exists(call.keys.record(KIND, record.deployment))] if ended else []
    return (*body, *gone, store.replace(stored, wanted))


async def _refuse_held(call: Call, submission: Submission) -> None:
    """Name the deployment that joined one of the services first, if that is what happened."""
    names = [goal.name for goal in submission.deployment.goals]
    records = await services(call, names)
    held = await holding(call, {stored.record.deployment for stored in records.values()})
    held.pop(submission.deployment.id, None)
    unless_held(call, Scene(view={}, volumes={}, records=records, holding=held), names)


def _fit(wanted: Sequence[Operation]) -> bool:
    return len(wanted) <= MAX_OPERATIONS and sum(each.size() for each in wanted) <= MAX_BYTES


def _labels(aims: Sequence[Aim]) -> dict[str, str]:
    """The labels that all services have: by them farms choose."""
    versions = [aim.goal.wanted or aim.goal.previous for aim in aims]
    labels = [version.labels.items() if version is not None else set() for version in versions]
    return dict(sorted(set.intersection(*map(set, labels)))) if labels else {}


def _change(deployment: Deployment) -> Change:
    names = [goal.name for goal in deployment.goals]
    after: dict[str, Scalar] = {"services": listed(names)}
    if deployment.project:
        after = {"project": deployment.project, **after}
    return Change(KIND, deployment.id, deployment.name, "deployment.create", after=after)
