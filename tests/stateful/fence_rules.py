"""How a transaction must be made, whatever it changes: locks, fences, sizes, people's edits."""

from __future__ import annotations

from collections.abc import Iterable

from store.embedded.verbs import KvOperation, Session
from store.keys import is_sentinel
from tests.stateful.moment import Look, Moment

# What only a worker with a claim writes.
WORKERS = ("pods", "intent", "reserved", "status", "audit", "nodes", "manifests", "work", "names", "history")
WORKERS += ("rcs", "daemonsets", "rollouts", "deployments", "services", "apps", "trackers")
RECORDS = ("rcs", "daemonsets", "nodes")
ROUTINE_BYTES = 64 * 1024


def session(made: Session) -> Iterable[str]:
    """A farm's session expires by its TTL alone, and deletes what it held (R1)."""
    if made.behavior != "delete" or made.node_checks or made.service_checks:
        yield f"with behaviour {made.behavior} and checks {made.node_checks} {made.service_checks}"
    if not 10 <= float(made.ttl.removesuffix("s")) <= 15:
        yield f"with a TTL of {made.ttl}"


def fences(look: Look, moment: Moment) -> Iterable[str]:
    """Every write of a worker names its claim and, where pods change, the version of the record (R12)."""
    yield from _locks(look, moment)
    families = {_family(look, op.key) for op in moment.writes if not is_sentinel(op.key)}
    verbs = {(op.verb, op.key) for op in moment.operations}
    locks = {key for verb, key in verbs if verb == "check-session" and ("check-index", key) in verbs}
    if families & set(WORKERS) and not locks:
        yield f"wrote {sorted(families)} without a fence"
    if families & {"pods", "intent"}:
        for audit in moment.audits:
            if ("check-index", look.keys.record(audit.kind, audit.id)) not in verbs:
                yield f"changed pods of {audit.kind}/{audit.id} without naming its version"
    if len(moment.operations) > 64 or sum(len(op.value or b"") for op in moment.operations) > ROUTINE_BYTES:
        yield f"is no routine transaction: {len(moment.operations)} operations"
    if len(moment.audits) > 1:
        yield f"carries {len(moment.audits)} audit records"


def _locks(look: Look, moment: Moment) -> Iterable[str]:
    """A lock is taken only where none is, or handed over at once; its value is never rewritten (R3, R9)."""
    earlier: set[tuple[str, str]] = set()
    for op in moment.operations:
        if _family(look, op.key) == "locks" and not is_sentinel(op.key):
            free = {("check-not-exists", op.key), ("delete", op.key)} & earlier
            if op.verb in ("set", "cas") or (op.verb == "lock" and not free):
                yield f"{op.verb} of {op.key} over what may be there"
        earlier.add((op.verb, op.key))


def edits(look: Look, moment: Moment) -> Iterable[str]:
    """People's commands name the version, respect the mutation lock and set the body again (R13, R24)."""
    verbs = {(op.verb, op.key) for op in moment.operations}
    for op in moment.writes:
        family = _family(look, op.key)
        if family not in RECORDS or is_sentinel(op.key) or moment.before[op.key] is None:
            continue
        lock = look.keys.mutation_lock(family, look.keys.last_part(op.key))
        if op.verb not in ("cas", "delete-cas") and ("check-index", op.key) not in verbs:
            yield f"{op.verb} of {op.key} without its version"
        free = ("check-not-exists", lock) in verbs or ("delete-cas", lock) in verbs
        if not free and not _superseding(look, moment, lock):
            yield f"{op.verb} of {op.key} whoever holds its mutation lock"
        if family != "nodes" and not _refers_well(look, moment, op):
            yield f"{op.key} refers to a manifest that is not set again"
    registers = any(op.key in (look.keys.cluster, look.keys.schema) for op in moment.writes)
    if moment.writes and not registers and len(moment.audits) != 1:
        yield f"a person's change has {len(moment.audits)} audit records"


def _superseding(look: Look, moment: Moment, lock: str) -> bool:
    """Whether it gives a rollout another version: the lock is that rollout's, and stays so (R13)."""
    rolls = any(_family(look, op.key) == "rollouts" and op.verb == "cas" for op in moment.writes)
    return rolls and ("check-index", lock) in {(op.verb, op.key) for op in moment.operations}


def _refers_well(look: Look, moment: Moment, op: KvOperation) -> bool:
    """Whoever makes a record refer to a manifest sets its body in the same transaction."""
    now, before = look.kv.get(op.key), moment.before[op.key]
    written = {each.key for each in moment.writes}
    for digest in (key.rpartition("/")[2] for key in look.under("manifests")):
        text = digest.encode()
        new = now is not None and text in (now.value or b"")
        if new and not (before is not None and text in (before.value or b"")):
            return look.keys.manifest(digest) in written
    return True


def _family(look: Look, key: str) -> str:
    return key.removeprefix(look.keys.prefix).partition("/")[0]
