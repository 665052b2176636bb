"""What holds of every change that a deployment makes to the pods of its services."""

from __future__ import annotations

from collections.abc import Iterable

from store.audit import Audit
from store.daemonsets import DaemonSet
from store.deployments import KIND, Deployment
from store.rcs import ReplicationController
from tests.stateful.moment import Look, Moment

OWNERS = {"rcs": ReplicationController, "daemonsets": DaemonSet}


def standing(look: Look, deployment: Deployment | None, audit: Audit) -> int:
    """How many pods the service has that a transaction changes, that of its hook included."""
    changed = {each.partition("/")[0] for each in (*audit.placed, *audit.removed, *audit.relabelled)}
    goals = deployment.goals if deployment is not None else []
    own = [(goal.owner.partition("/")[2], goal.service) for goal in goals]
    return sum(len(look.standing(each)) for pair in own if changed & {*pair} for each in pair)


def _owners(deployment: Deployment | None) -> dict[str, str]:
    """The key of the owner's record by the id under which pods may stand."""
    if deployment is None:
        return {}
    found = {goal.owner.partition("/")[2]: goal.owner for goal in deployment.goals}
    return found | {goal.service: goal.owner for goal in deployment.goals}


def judge(look: Look, moment: Moment, audit: Audit) -> Iterable[str]:
    """Judge one transaction of a deployment's worker."""
    deployment = look.record(Deployment, moment.before[look.keys.record(KIND, audit.id)])
    if deployment is None:
        yield f"{audit.action} of a deployment that is not there or does not decode"
        return
    owners, moved = _owners(deployment), moment.added | moment.gone | moment.changed
    checked = {op.key for op in moment.operations if op.verb in ("check-index", "cas")}
    for owner in sorted({owner for owner, _, _ in moved}):
        if owner not in owners:
            yield f"changed pods of {owner}, which is none of its services"
            continue
        family, _, ident = owners[owner].partition("/")
        key = look.keys.record(family, ident)
        record = look.at(OWNERS[family], key)
        if record is None or not record.taken or record.managed_by != f"{KIND}/{deployment.id}":
            yield f"changed pods of {owner}, which it has not taken: {record}"
        if key not in checked:
            yield f"changed pods of {owner} without a look at its record"
    if deployment.ask == "pause" and (moment.added or moment.gone or moment.changed):
        yield "changed pods while it is paused"
    if deployment.draft and audit.action not in ("deployment.abandoned", "deployment.free"):
        yield f"{audit.action} of a draft"
