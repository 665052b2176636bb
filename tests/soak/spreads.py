"""Rollouts over nodes during a soak: a new version is on no more nodes than its stage allows, and while it is
held it replaces no pod.

Judged from the pods and daemon sets of two looks and what the audit tells between them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from store.audit import Audit
from store.daemonsets import DaemonSet
from store.entry import Entry
from store.pods import Pod
from tests.fault.invariants import Dump
from tests.soak.sight import Sight
from tests.soak.words import STAGES

CANARIES = ("", "zone=b", "zone in (a,c)")


def file(gate: str, rng: random.Random) -> dict[str, Any]:
    """The fields of a daemon set's file whose next version comes by a rollout."""
    policy: dict[str, Any] = {"stages": rng.choice(STAGES), "progress_deadline": 30}
    policy["strategy"] = rng.choice(("rolling", "rolling", "availability"))
    if rng.random() < 0.3:
        asked = {"every": 1, "timeout": 1, "passes": 2, "failures": 2}
        policy["gates"] = [{"name": "smoke", "http": gate, **asked}]
    return {"rollout": policy, "canary_selector": rng.choice(CANARIES)}


def beyond(before: Sight, after: Sight, audits: Sequence[Audit]) -> Iterable[str]:
    """Versions that came to more nodes than their stage allows, or to a pod while they were held."""
    for daemonset in after.dump.daemonsets.values():
        old = before.dump.daemonsets.get(daemonset.id)
        if not daemonset.coming:
            continue
        had, has = _with(before.dump, daemonset), _with(after.dump, daemonset)
        allowed = _allowed(old, daemonset, audits, len(after.zones))
        if len(has) > max(len(had), allowed):
            yield f"{daemonset.name}: {sorted(has)} have {daemonset.coming[:12]}, {allowed} nodes may"
        if daemonset.coming_held and _index(before.dump, daemonset) == _index(after.dump, daemonset):
            replaced = [node for node in has.keys() - had.keys() if _stood(before.dump, daemonset, has[node])]
            if replaced:
                yield f"{daemonset.name}: {sorted(replaced)} were replaced while its rollout was held"


def _with(dump: Dump, daemonset: DaemonSet) -> dict[str, Entry]:
    """The pods that have the version that is coming, by node."""
    return {
        node: entry
        for (owner, node, _), (entry, pod) in dump.pods.items()
        if owner == daemonset.id and _new(pod, daemonset)
    }


def _new(pod: Pod, daemonset: DaemonSet) -> bool:
    return pod.manifest == daemonset.coming


def _allowed(old: DaemonSet | None, new: DaemonSet, audits: Sequence[Audit], nodes: int) -> int:
    """On how many nodes the version might be at any moment between the looks."""
    rollout = new.managed_by.partition("/")[2]
    said = [str(each.after["to"]) for each in audits if each.id == rollout and "to" in each.after]
    parts = [new.coming_to, *([old.coming_to] if old is not None and old.coming == new.coming else [])]
    parts += [int(each) if each.isdigit() else each for each in said if each.isdigit() or each.endswith("%")]
    return max(msgspec.structs.replace(new, coming_to=part).renewed(nodes) for part in parts)


def _index(dump: Dump, daemonset: DaemonSet) -> int:
    entry = dump.entries.get(dump.keys.record("daemonsets", daemonset.id))
    return 0 if entry is None else entry.modify_index


def _stood(dump: Dump, daemonset: DaemonSet, entry: Entry) -> bool:
    """Whether the very pod was there before, with another version."""
    found = dump.entries.get(entry.key)
    return found is not None and found.create_index == entry.create_index
