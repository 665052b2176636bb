"""Finds pods whose controller is gone, intents without a pod, realities without an intent.

Absence counts only where sentinels prove it, and a finding alone never removes anything: the removal's own
transaction checks that the owner is still absent.
"""

from __future__ import annotations

from collections.abc import Iterator

from farmd.doctor import reservations
from farmd.doctor.model import Finding, Removal
from farmd.doctor.survey import Survey
from store.entry import Entry
from store.reality import Intent


def check(survey: Survey) -> list[Finding]:
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
