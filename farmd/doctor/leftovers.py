"""Finds what is left of items that are gone: names, statuses, work, runs, locks, references, and pods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from farmd.doctor import records, reservations
from farmd.doctor.model import Finding, Removal
from farmd.doctor.survey import Survey
from farmd.work.hands import freed
from store import codec
from store.entry import Entry
from store.errors import RecordInvalid
from store.families import FAMILIES, JOBS, RUNS, decode, named, owns_pods
from store.jobs import Job, Run, known_run
from store.locks import Holder
from store.reality import Intent
from store.services import KIND, Service

OWN_ID = re.compile("[0-9a-f]{16}")


def check(survey: Survey) -> list[Finding]:
    """The findings; none while the records themselves are in doubt."""
    if not survey.proven():
        return []
    return [
        *_names(survey),
        *_states(survey),
        *_runs(survey),
        *_locks(survey),
        *_managed(survey),
        *_services(survey),
    ]


def _names(survey: Survey) -> Iterator[Finding]:
    tree = survey.keys.tree("names")
    for entry, item in survey.decoded("names", str):
        family, _, name = entry.key[len(tree) :].partition("/")
        if record := _gone(survey, family, item):
            explanation = f"the name {name!r} points to {item}, which does not exist"
            yield _finding(survey, "stale-name", entry, family, item, explanation, record)


def _states(survey: Survey) -> Iterator[Finding]:
    for family in ("status", "work"):
        tree = survey.keys.tree(family)
        for entry in survey.well_formed(family):
            kind, _, item = entry.key[len(tree) :].partition("/")
            if record := _gone(survey, kind, item):
                explanation = f"the {kind} record {item} does not exist"
                yield _finding(survey, f"stale-{family}", entry, kind, item, explanation, record)


def _runs(survey: Survey) -> Iterator[Finding]:
    """Runs of jobs that are gone; those under a uid are of jobs in Kubernetes, which have no record here."""
    for entry in survey.well_formed(RUNS.name):
        item = survey.keys.last_part(entry.key)
        record = survey.keys.record(JOBS.name, item)
        if OWN_ID.fullmatch(item) and record not in survey.trees[JOBS.name]:
            explanation = f"the job {item} does not exist"
            yield _finding(survey, "stale-run", entry, JOBS.name, item, explanation, record)
    found = {entry.key: (entry, run) for entry, run in survey.decoded(RUNS.name, Run)}
    for _, job in survey.decoded(JOBS.name, Job):
        key = survey.keys.record(RUNS.name, job.id)
        entry, kept = found.get(key, (survey.trees[RUNS.name].get(key, Entry(key, b"", 0)), None))
        if not job.recorded or job.deleting or (kept is None and entry.modify_index):
            continue  # one that does not decode is a finding of its own
        try:
            known_run(job, kept, survey.short(key))
        except RecordInvalid as error:
            fix, removal = records.run(survey, RUNS.name, entry)
            yield Finding("run-lost", survey.short(key), error.message, fix, removal)


def _managed(survey: Survey) -> Iterator[Finding]:
    """Records whose manager is gone. People may not change them, and no manager will ever release them."""
    for family in survey.trees:
        for entry in survey.well_formed(family) if named(family) else ():
            try:
                record = decode(survey.keys, family, entry)
            except RecordInvalid:
                continue
            kind, _, item = getattr(record, "managed_by", "").partition("/")
            manager = _gone(survey, kind, item)
            if not manager:
                continue
            value = codec.rewrite(msgspec.structs.replace(record, **freed(record)), entry.value)
            frees = ((entry.key, entry.modify_index, value),)
            yield Finding(
                "managed-by-nobody",
                survey.short(entry.key),
                f"{record.managed_by} manages it but does not exist",
                f"farmctl doctor --fix {survey.short(entry.key)} frees it",
                Removal(family, record.id, _lock_of_manager(survey, family, record), (manager,), frees=frees),
            )


def _lock_of_manager(survey: Survey, family: str, record: Any) -> tuple[tuple[str, int], ...]:
    """The mutation lock of a record (R13) and its index, where its manager holds it."""
    lock = survey.trees["locks"].get(survey.keys.mutation_lock(family, record.id))
    if lock is None:
        return ()
    holder = Holder.parse(lock.value)
    return ((lock.key, lock.modify_index),) if f"{holder.kind}/{holder.id}" == record.managed_by else ()


def _services(survey: Survey) -> Iterator[Finding]:
    """Services whose owners of pods are gone."""
    for entry, service in survey.decoded(KIND, Service):
        named_by = [ref.partition("/") for ref in service.active]
        keys = {
            f"{family}/{item}": survey.keys.record(family, item)
            for family, _, item in named_by
            if owns_pods(family)
        }
        gone = {ref: key for ref, key in keys.items() if key not in survey.trees[ref.partition("/")[0]]}
        if not gone:
            continue
        left = msgspec.structs.replace(service, active=[ref for ref in service.active if ref not in gone])
        frees = ((entry.key, entry.modify_index, codec.rewrite(left, entry.value)),)
        yield Finding(
            "service-of-nobody",
            survey.short(entry.key),
            f"service {service.name} names {', '.join(gone)}, which does not exist",
            f"farmctl doctor --fix {survey.short(entry.key)} removes them from it; or delete the service",
            Removal(KIND, service.id, (), absent=tuple(gone.values()), frees=frees),
        )


def _locks(survey: Survey) -> Iterator[Finding]:
    for entry in survey.records("locks"):
        kind, item, _ = survey.keys.lock_parts(entry.key)
        if not kind:
            continue
        holder = Holder.parse(entry.value)
        if not entry.session:
            explanation = "no session holds it, so it is never freed, and no farm can take it"
            yield _finding(survey, "lock-of-nobody", entry, kind, item, explanation)
        elif record := _gone(survey, kind, item):
            explanation = f"{holder.kind}/{holder.id} holds the lock of an item that does not exist"
            yield _finding(survey, "stale-lock", entry, kind, item, explanation, record)
        elif manager := _gone(survey, holder.kind, holder.id):  # a mutation lock (R13)
            explanation = f"{holder.kind}/{holder.id} locks out changes by people, but does not exist"
            yield _finding(survey, "stale-lock", entry, kind, item, explanation, manager)


def _gone(survey: Survey, family: str, item: str) -> str:
    """The key of an item that people name and that is gone; empty: it is there, or of another family."""
    if not named(family) or item == FAMILIES[family].item:
        return ""
    key = survey.keys.record(family, item)
    return "" if key in survey.trees[family] else key


def _finding(
    survey: Survey, code: str, entry: Entry, kind: str, item: str, explanation: str, *absent: str
) -> Finding:
    removal = Removal(kind, item, ((entry.key, entry.modify_index),), absent)
    name = survey.short(entry.key)
    return Finding(code, name, explanation, f"farmctl doctor --fix {name} removes it", removal)


# Pods whose controller is gone, intents without a pod, realities without an intent.
#
# Absence counts only if sentinels prove it. A finding alone never removes anything: the transaction of the
# removal checks that the owner is still absent.


def check_pods(survey: Survey) -> list[Finding]:
    """The findings; none while a tree that matters is in doubt."""
    if not survey.proven("pods", "intent", "agents"):
        return []
    return [*_pods(survey), *_intents(survey), *_realities(survey)]


def _pods(survey: Survey) -> Iterator[Finding]:
    intents = {entry.key: (entry, intent) for entry, intent in survey.decoded("intent", Intent)}
    room = reservations.held(survey)
    for entry in survey.well_formed("pods"):
        owner, node, instance = survey.keys.pod_parts(entry.key)
        if survey.owned(owner):
            continue
        keys = [(entry.key, entry.modify_index)]
        found = intents.get(survey.keys.intent(node, instance))
        ours = found is None or found[1].owner == owner
        if found is not None and ours:
            keys.append((found[0].key, found[0].modify_index))
        runs = " and its node has an intent to run it" if len(keys) > 1 else ""
        yield Finding(
            "orphan-pod",
            survey.short(entry.key),
            f"its owner {owner} does not exist{runs}",
            f"farmctl doctor --fix {survey.short(entry.key)} removes the pod and stops it",
            Removal(
                "pods",
                owner,
                tuple(keys),
                survey.owner_keys(owner),
                f"{node}/{instance}",
                room.get((node, instance)) if ours else None,
            ),
        )


def _intents(survey: Survey) -> Iterator[Finding]:
    room, taken = reservations.held(survey), reservations.needed(survey)
    for entry, intent in survey.decoded("intent", Intent):
        node, instance = survey.keys.intent_parts(entry.key)
        pod = survey.keys.pod(intent.owner, node, instance)
        if pod in survey.trees["pods"]:
            continue
        owned = survey.owned(intent.owner)
        release = room.get((node, instance)) if (node, instance) not in taken else None
        at_once = owned and release is not None
        yield Finding(
            "intent-without-pod" if owned else "orphan-intent",
            survey.short(entry.key),
            f"its owner {intent.owner} {'does not count it among its pods' if owned else 'does not exist'}",
            f"farmctl doctor --fix {survey.short(entry.key)} stops it",
            Removal(
                "intent",
                # Changes of the same node's record are one item.
                node if at_once else f"{node}/{instance}",
                ((entry.key, entry.modify_index),),
                (pod,) if owned else (pod, *survey.owner_keys(intent.owner)),
                release=release,
                at_once=at_once,
            ),
        )


def _realities(survey: Survey) -> Iterator[Finding]:
    """Realities of absent agents; a present agent stops what it should not run, and reports it."""
    for entry in survey.well_formed("reality"):
        node, instance = survey.keys.reality_parts(entry.key)
        intent, agent = survey.keys.intent(node, instance), survey.keys.agent(node)
        if intent not in survey.trees["intent"] and agent not in survey.trees["agents"]:
            yield _stale(survey, entry, node, instance)


def _stale(survey: Survey, entry: Entry, node: str, instance: str) -> Finding:
    return Finding(
        "stale-reality",
        survey.short(entry.key),
        f"{node} was last seen running it, should no longer run it, but its agent is absent",
        "start the agent, which stops it; if the node is gone for good:"
        f" farmctl doctor --fix {survey.short(entry.key)}",
        Removal(
            "reality",
            f"{node}/{instance}",
            ((entry.key, entry.modify_index),),
            (survey.keys.intent(node, instance), survey.keys.agent(node)),
        ),
    )
