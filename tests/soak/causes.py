"""No farm removes a pod without a cause that is real: what the audit tells is held against what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from store.audit import Audit
from store.daemonsets import DaemonSet
from store.rcs import ReplicationController
from tests.fault.invariants import Place
from tests.soak.sight import Sight

# A move lasts up to 20 s, waits for a floor before, and is rolled back or finished by another farm after.
RECENTLY = 120.0
UNHEALTHY_AFTER = 20.0


def groundless(audit: Audit, seen: Sequence[Sight]) -> Iterable[str]:
    """Lines about pods that this record removes, and for whose removal nothing that was seen is a cause.

    ``seen`` are the looks of the last minutes, the oldest first, with the first one after the record last.
    """
    owner = next((found for sight in reversed(seen) if (found := sight.dump.owners.get(audit.id))), None)
    if not audit.actor.startswith("farm/") or owner is None:
        return
    recent = [sight for sight in seen if sight.at > audit.at - RECENTLY]
    for text in audit.removed:
        node, _, instance = text.partition("/")
        if not any(
            _surplus(audit, sight)
            or _leaves(node, audit.id, sight)
            or _given_up(node, sight)
            or _ill((node, instance), sight)
            or _succeeded((node, instance), audit.id, sight)
            for sight in recent
        ) and not audit.action.startswith(("transfer.cancel", "transfer.rollback")):
            yield f"{audit.action} of {owner.name} took {text} away without a cause ({audit.reason!r})"


def _surplus(audit: Audit, sight: Sight) -> bool:
    """People want fewer pods than there were, or none."""
    owner = sight.dump.owners.get(audit.id)
    if owner is None or owner.deleting:
        return True
    before = audit.before.get("pods", 0)
    return isinstance(owner, ReplicationController) and owner.replicas_desired < int(before)


def _leaves(node: str, owner_id: str, sight: Sight) -> bool:
    """People drain the node, or say labels or taints that keep the owner from it."""
    owner = sight.dump.owners.get(owner_id)
    if owner is None or sight.drain(node) is not None or not sight.fits(node, owner.node_selector):
        return True
    record = sight.nodes.get(node)
    return isinstance(owner, DaemonSet) and record is not None and bool(record.taints)


def _given_up(node: str, sight: Sight) -> bool:
    """The agent was in trouble for long enough that its node may count as lost."""
    return sight.well_for.get(node, 0.0) == 0.0


def _succeeded(place: Place, owner_id: str, sight: Sight) -> bool:
    """A pod of a daemon set serves beside it, with the version that it should have."""
    owner = sight.dump.owners.get(owner_id)
    return isinstance(owner, DaemonSet) and any(
        sight.serves((node, instance), pod.manifest) and pod.manifest in owner.manifests
        for (mine, node, instance), (_, pod) in sight.dump.pods.items()
        if mine == owner_id and node == place[0] and instance != place[1]
    )


def _ill(place: Place, sight: Sight) -> bool:
    """The pod was known not to serve."""
    found = sight.realities.get(place)
    return found is not None and (found[1].phase, found[1].health.state) != ("running", "passing")
