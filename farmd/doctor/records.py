"""Finds records that do not decode, and references to missing manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from farmd.doctor.model import Finding, Removal
from farmd.doctor.survey import Survey
from farmd.kinds import KINDS
from store import codec, families
from store.apps import App
from store.containers import Volume
from store.entry import Entry
from store.errors import RecordInvalid
from store.failsafe import ILLEGIBLE
from store.families import JOBS
from store.jobs import Job, Run
from store.labels import POD_ID_LABEL
from store.manifests import asked
from store.nodes import KIND as VOLUMES
from store.nodes import Node, NodeVolume, Reserved
from store.pods import Pod
from store.reality import Intent
from store.words import count_of

# Says how to fix each record that does not decode: restore it from other records, or remove it.
#
# A record is restored where other records tell its content, so that nothing that runs is touched. Otherwise
# it is removed, and its owner writes it again or goes on without it.

WayOut = tuple[str, Removal]
CORDON_REASON = "its record did not decode and was rewritten"


def way_out(survey: Survey, family: str, entry: Entry) -> WayOut:
    """The advice for a record that does not decode, and the doctor's fix."""
    if not families.well_formed(survey.keys, family, entry.key):
        return _removed(survey, family, entry, "removes it")
    way = _named if families.named(family) else _WAYS.get(family, _written_anew)
    return way(survey, family, entry)


def _removed(
    survey: Survey, family: str, entry: Entry, what: str, *beside: str, absent: tuple[str, ...] = ()
) -> WayOut:
    """The removal of a record with the keys ``beside`` it that exist."""
    name = survey.short(entry.key)
    found = (survey.trees[key[len(survey.keys.prefix) :].partition("/")[0]].get(key) for key in beside)
    keys = tuple((each.key, each.modify_index) for each in (entry, *found) if each is not None)
    item = name.removeprefix(f"{family}/")
    return f"farmctl doctor --fix {name} {what}", Removal(family, item, keys, absent)


def _restored(
    survey: Survey, family: str, entry: Entry, record: object, what: str, *, absent: tuple[str, ...] = ()
) -> WayOut:
    name = survey.short(entry.key)
    restores = ((entry.key, entry.modify_index, codec.encode(record)),)
    item = name.removeprefix(f"{family}/")
    return f"farmctl doctor --fix {name} {what}", Removal(family, item, (), absent, restores=restores)


def _named(survey: Survey, family: str, entry: Entry) -> WayOut:
    keys, item = survey.keys, survey.keys.last_part(entry.key)
    what = "removes it"
    if families.owns_pods(family):
        count = sum(1 for each in survey.records("pods") if each.key.startswith(keys.pods(item)))
        what = f"removes it; its {count_of(count, 'pod')} are then reported as orphan-pod"
    names = (each for each in survey.records("names") if each.key.startswith(keys.name(family, "")))
    named = [each.key for each in names if each.value == codec.encode(item)]
    fix, removal = _removed(
        survey,
        family,
        entry,
        what,
        *named,
        keys.status(family, item),
        keys.work(family, item),
        absent=(keys.mutation_lock(family, item),),
    )
    return f"consul kv put {entry.key} @FILE restores it from a copy; {fix}", removal


def _pod(survey: Survey, family: str, entry: Entry) -> WayOut:
    """A pod is restored from its intent, which its owner wrote with it; without an intent it never ran."""
    owner, node, instance = survey.keys.pod_parts(entry.key)
    at = survey.keys.intent(node, instance)
    intent = next((one for each, one in survey.decoded("intent", Intent) if each.key == at), None)
    if intent is None or intent.owner != owner:
        return _removed(survey, family, entry, "removes it; its owner places another")
    labels = _labels(survey, owner)
    return _restored(
        survey, family, entry, Pod(intent.manifest, labels, survey.now), "restores it from its intent"
    )


def _labels(survey: Survey, owner: str) -> dict[str, str]:
    for family, _, record in survey.owners():
        if record.id == owner:
            labels = getattr(record, "pod_labels", {})
            named = {POD_ID_LABEL: record.pod_id} if hasattr(record, "pod_id") else {}
            return {**labels, **named, family.owner_label: owner}
    return {}


def _intent(survey: Survey, family: str, entry: Entry) -> WayOut:
    """An intent is restored from its pod, and the node continues with what it runs."""
    place = survey.keys.intent_parts(entry.key)
    # With the owner's counter its worker has no reason to restart the pod (R28).
    restarts = {record.id: record.restart for _, _, record in survey.owners()}
    pods = [
        Intent(pod.manifest, owner, restarts.get(owner, 0))
        for each, pod in survey.decoded("pods", Pod)
        for owner, *where in [survey.keys.pod_parts(each.key)]
        if tuple(where) == place
    ]
    if len(pods) != 1:
        return _removed(survey, family, entry, "removes it, and its node stops what it runs there")
    return _restored(survey, family, entry, pods[0], "restores it from its pod")


def _reality(survey: Survey, family: str, entry: Entry) -> WayOut:
    fix, removal = _removed(survey, family, entry, "removes the report of an agent that is gone for good")
    return f"its agent writes it again; {fix}", removal


def _node(survey: Survey, family: str, entry: Entry) -> WayOut:
    node = survey.keys.last_part(entry.key)
    record = Node(cordoned=True, cordon_reason=CORDON_REASON, volumes=_volumes(survey, node))
    lock = survey.keys.mutation_lock("nodes", node)
    new = "a new one, cordoned, without labels, with the volumes that other records mention"
    what = f"writes {new}; then farmctl node label and uncordon {node}"
    fix, removal = _restored(survey, family, entry, record, what, absent=(lock,))
    return f"consul kv put {entry.key} @FILE restores it from a copy; {fix}", removal


def _app(survey: Survey, family: str, entry: Entry) -> WayOut:
    """An app is restored from its revisions, paused, so that a person looks at it first."""
    name = survey.keys.last_part(entry.key)
    tree = survey.keys.trackers(name)
    found = [each.key[len(tree) :] for each in survey.well_formed("trackers") if each.key.startswith(tree)]
    numbers = [int(number) for number in found if number.isdecimal()]
    if not numbers:
        return _removed(survey, family, entry, "removes it; no revision of it is left")
    new = f"a new one, paused, which requests revision {max(numbers)} and has the default settings"
    lock = survey.keys.mutation_lock(family, name)
    record = App(revision=max(numbers), paused=True)
    return _restored(survey, family, entry, record, f"writes {new}", absent=(lock,))


def _volumes(survey: Survey, node: str) -> dict[str, NodeVolume]:
    """The volumes of a node from their names and its pods. Without them they would be created again, empty,
    elsewhere.

    A name tells of one node where several have the volume.
    """
    found, tree = dict[str, NodeVolume](), f"{survey.keys.tree('names')}{VOLUMES}/"
    for each, where in survey.decoded("names", str):
        if each.key.startswith(tree) and where == node:
            found[each.key.removeprefix(tree)] = NodeVolume()
    for each, pod in survey.decoded("pods", Pod):
        manifest = survey.manifests.get(pod.manifest)
        if manifest is None or survey.keys.pod_parts(each.key)[1] != node:
            continue
        for name in {mount.source for mount in manifest.mounts if mount.type == "volume"}:
            made = manifest.volumes.get(name, Volume())
            found[name] = NodeVolume(driver=made.driver, options=made.options, labels=made.labels)
    return found


def _reserved(survey: Survey, family: str, entry: Entry) -> WayOut:
    node = survey.keys.last_part(entry.key)
    instances = {}
    for each, pod in survey.decoded("pods", Pod):
        _, where, instance = survey.keys.pod_parts(each.key)
        manifest = survey.manifests.get(pod.manifest)
        if where == node and manifest is not None and asked(manifest):
            instances[instance] = asked(manifest)
    return _restored(
        survey, family, entry, Reserved(instances), "restores it from the requests of the pods there"
    )


def _freeze(survey: Survey, family: str, entry: Entry) -> WayOut:
    fix, removal = _removed(survey, family, entry, "removes it; farms freeze again if they have a reason")
    kind = survey.keys.last_part(entry.key)
    clear = f"farmctl failsafe clear {kind} --evidence '{ILLEGIBLE}' --for 10m --reason WHY"
    return f"{fix}; {clear} lets removals go on", removal


def _name(survey: Survey, family: str, entry: Entry) -> WayOut:
    of, _, name = entry.key[len(survey.keys.tree("names")) :].partition("/")
    found = []
    if families.named(of) and (kind := families.FAMILIES[of].record) is not None:
        found = [record.id for _, record in survey.decoded(of, kind) if record.name == name]
    elif of == VOLUMES:
        nodes = ((survey.keys.last_part(each.key), node) for each, node in survey.decoded("nodes", Node))
        found = sorted(node for node, record in nodes if name in record.volumes)[:1]
    if len(found) != 1:
        return _removed(survey, family, entry, "removes it; no record has that name")
    return _restored(survey, family, entry, found[0], "restores it from the record that has the name")


def run(survey: Survey, family: str, entry: Entry) -> WayOut:
    """The fix for a job's run that does not hold the job's progress."""
    what = "restarts its job: completed slots run again, and it has all its retries"
    item = survey.keys.last_part(entry.key)
    recorded = any(job.id == item and job.recorded for _, job in survey.decoded(JOBS.name, Job))
    if not recorded:
        return _removed(survey, family, entry, what)
    return _restored(survey, family, entry, Run(job=item), what)


def _by(what: str) -> Callable[[Survey, str, Entry], WayOut]:
    return lambda survey, family, entry: _removed(survey, family, entry, what)


_written_anew = _by("removes it, and its owner writes it again")
_WAYS: dict[str, Callable[[Survey, str, Entry], WayOut]] = {
    "pods": _pod,
    "intent": _intent,
    "reality": _reality,
    "nodes": _node,
    "apps": _app,
    "trackers": _by("removes it: objects that only that revision of the app made keep its mark for ever"),
    "runs": run,
    "history": _by("removes it: that end is no longer shown, and nothing can go back to it"),
    "signatures": _by("removes it: sign the manifest again, otherwise pods of that owner may be refused"),
    "agents": _by("removes it, and the agent announces itself again"),
    "reserved": _reserved,
    "farms": _by("removes it, and the farm announces itself again"),
    "failsafe": _freeze,
    "work": _by(
        "removes it: its worker forgets crashes and moves; an item that has begun waits for a person"
    ),
    "names": _name,
}


MOST_OF_NODE = 16 * 1024 * 1024


def check(survey: Survey) -> list[Finding]:
    """Check every record of the families that this version knows."""
    return [*_undecodable(survey), *_large(survey), *_without_manifest(survey), *_corrupt_manifests(survey)]


def _undecodable(survey: Survey) -> list[Finding]:
    findings = []
    for name in (family.name for family in families.FAMILIES.values() if family.record is not None):
        for entry in survey.records(name):
            try:
                families.decode(survey.keys, name, entry)
            except RecordInvalid as error:
                fix, removal = way_out(survey, name, entry)
                fix = f"if a newer version wrote it, let that version correct it; otherwise {fix}"
                findings.append(
                    Finding("record-invalid", survey.short(entry.key), error.message, fix, removal)
                )
    return findings


def _large(survey: Survey) -> list[Finding]:
    """Nodes with more reality than agents write: Consul's servers hold all of it in memory."""
    sizes = Counter[str]()
    for entry in survey.well_formed("reality"):
        sizes[survey.keys.reality_parts(entry.key)[0]] += len(entry.value)
    return [
        Finding(
            "reality-large",
            f"agents/{node}",
            f"its reality takes {-(-size >> 20)} MiB in Consul, expected at most {MOST_OF_NODE >> 20} MiB",
            "find out who has its agent's token, and revoke it; farmctl node forget removes the rest",
        )
        for node, size in sorted(sizes.items())
        if size > MOST_OF_NODE
    ]


def _without_manifest(survey: Survey) -> list[Finding]:
    referring = [(entry, sha) for _, entry, record in survey.owners() for sha in record.manifests]
    referring += [(entry, pod.manifest) for entry, pod in survey.decoded("pods", Pod)]
    intents = list(survey.decoded("intent", Intent))
    referring += [(entry, intent.manifest) for entry, intent in intents]
    peerless = [(entry, intent.peers) for entry, intent in intents if intent.peers not in {"", *survey.peers}]
    return [
        Finding(
            "manifest-missing",
            survey.short(entry.key),
            f"it refers to the manifest {sha[:12]}, which does not exist: it cannot be started again",
            f"{_update()} writes a manifest with its owner",
        )
        for entry, sha in referring
        if sha not in survey.manifests
    ] + [
        Finding(
            "manifest-missing",
            survey.short(entry.key),
            f"it refers to the peers document {sha[:12]}, which does not exist: it cannot be started again",
            "if its job does not restart by itself, stop and resume it",
        )
        for entry, sha in peerless
    ]


def _corrupt_manifests(survey: Survey) -> list[Finding]:
    return [
        Finding(
            "manifest-invalid",
            f"manifests/{sha}",
            "its body does not match its digest: no node starts it",
            f"{_update()} with the same pod writes it again",
        )
        for sha, manifest in survey.manifests.items()
        if manifest is None
    ]


def _update() -> str:
    """The command that writes a manifest again."""
    return f"farmctl {'|'.join(KINDS[family.name].noun for family in families.owners())} update -f FILE --now"
