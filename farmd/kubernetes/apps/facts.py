"""The facts of an app's objects in Kubernetes: read, judged, and compared with their documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from farmd.apps.facts import Live, Ref, owner_of
from farmd.apps.objects import scopes_of
from farmd.commands.edits import Readiness
from farmd.kubernetes.apps import marks
from farmd.kubernetes.apps.api import Api, Object
from farmd.kubernetes.apps.marks import mark_in, mark_of, marked
from farmd.kubernetes.apps.scopes import unreferenced
from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.errors import Denied, Invalid, KubernetesError, Unavailable
from farmd.kubernetes.objects import Resource, seconds_since_epoch
from farmd.kubernetes.pace import MOST_IN_FLIGHT
from store.apps import Entry, TypedReference
from store.errors import StoreUnavailable
from store.ports import Clock
from store.several import several

# Which of many objects do not exist, by one list of names in place of a read for each.

# So many objects of a kind in a namespace are worth a list, which has at most so many times their number:
# the API server lists 16 names in the time in which it answers one read.
MANY, CROWD = 16, 16


async def absent(
    refs: Iterable[TypedReference],
    resource_of: Callable[[TypedReference], Awaitable[Resource | None]],
    watching: Watching,
) -> set[str]:
    """Those of ``refs`` that a list proves not to exist, as text. The others are few, or of a kind or a
    namespace that cannot be listed now, or they may exist: each is to be read.
    """
    alike: dict[tuple[str, str, str], list[TypedReference]] = {}
    for ref in refs:
        alike.setdefault((ref.api_version, ref.kind, ref.namespace), []).append(ref)
    found: set[str] = set()
    for some in alike.values():
        if len(some) < MANY:
            continue
        try:
            if (resource := await resource_of(some[0])) is None:
                continue
            unseen = [ref for ref in some if not watching.version(resource, ref)]
            if len(unseen) < MANY:
                continue
            names = await watching.names(resource, some[0].namespace, CROWD * len(unseen))
            if names is not None:
                found |= {str(ref) for ref in unseen if ref.name not in names}
        except KubernetesError:
            continue  # the read of each tells what is wrong
    return found


# How far an object is, by the rules that kstatus reads them by: pure.

Found = Mapping[str, Any]
READY = Readiness("ready")


def judge(found: Found) -> Readiness:
    """The verdict on an object as the server has it."""
    going = leaving(found)
    return Readiness("progressing", going) if going else judge_last(found)


def leaving(found: Found) -> str:
    """That an object is being deleted, and what holds it; empty: it is not."""
    meta = found["metadata"]
    if not meta.get("deletionTimestamp"):
        return ""
    left = ", ".join(meta.get("finalizers") or ())
    return f"is being deleted{f', held by {left}' if left else ''}"


def judge_last(found: Found) -> Readiness:
    """How far an object is, or was when it began to go."""
    meta, status = found["metadata"], found.get("status")
    status = status if isinstance(status, Mapping) else {}
    seen = status.get("observedGeneration")
    if isinstance(seen, int) and seen < meta.get("generation", 0):
        return Readiness("progressing", "its controller has not seen the last change")
    group = found["apiVersion"].rpartition("/")[0]
    rule = _RULES.get((group, found["kind"]), _by_conditions)
    return rule(found, status)


def _condition(status: Found, kind: str) -> Mapping[str, Any]:
    said = status.get("conditions")
    told = [each for each in said if isinstance(each, Mapping)] if isinstance(said, list) else []
    return next((each for each in told if each.get("type") == kind), {})


def _told(condition: Mapping[str, Any]) -> str:
    said = (condition.get("reason"), condition.get("message"))
    return ": ".join(text for text in said if text and isinstance(text, str))


def _waits(text: str) -> Readiness:
    return Readiness("progressing", text)


def _by_conditions(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    """Any other kind: its Ready condition, if it has one; else it is ready as soon as it is there."""
    for kind in ("Ready", "Available"):
        if condition := _condition(status, kind):
            if condition.get("status") == "True":
                return READY
            stalled = _condition(status, "Stalled").get("status") == "True"
            return Readiness(
                "failed" if stalled else "progressing", _told(condition) or f"{kind} is not True"
            )
    return READY


def _deployment(found: Found, status: Found) -> Readiness:
    wanted = found["spec"].get("replicas", 1)
    progress = _condition(status, "Progressing")
    if progress.get("reason") == "ProgressDeadlineExceeded":
        return Readiness("failed", _told(progress))
    if "observedGeneration" not in status:
        return _waits("its controller has not seen it")
    updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)
    if updated < wanted:
        return _waits(f"{updated} of {wanted} updated")
    if total > updated:
        return _waits(f"{total - updated} old pods to remove")
    available = status.get("availableReplicas", 0)
    return READY if available >= wanted else _waits(f"{available} of {wanted} available")


def _stateful_set(found: Found, status: Found) -> Readiness:
    spec = found["spec"]
    wanted = spec.get("replicas", 1)
    if "observedGeneration" not in status:
        return _waits("its controller has not seen it")
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return READY
    ready = status.get("readyReplicas", 0)
    if ready < wanted:
        return _waits(f"{ready} of {wanted} ready")
    partition = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    updated = status.get("updatedReplicas", 0)
    if updated < wanted - partition:
        return _waits(f"{updated} of {wanted - partition} updated")
    if not partition and status.get("currentRevision") != status.get("updateRevision"):
        return _waits("the last pods are updated")
    return READY


def _daemon_set(found: Found, status: Found) -> Readiness:
    if "observedGeneration" not in status:
        return _waits("its controller has not seen it")
    wanted = status.get("desiredNumberScheduled", 0)
    on_delete = (found["spec"].get("updateStrategy") or {}).get("type") == "OnDelete"
    for field, word in (("updatedNumberScheduled", "updated"), ("numberAvailable", "available")):
        if not (on_delete and word == "updated") and status.get(field, 0) < wanted:
            return _waits(f"{status.get(field, 0)} of {wanted} {word}")
    return READY


def _job(found: Found, status: Found) -> Readiness:
    if (failed := _condition(status, "Failed")).get("status") == "True":
        return Readiness("failed", _told(failed))
    if any(_condition(status, kind).get("status") == "True" for kind in ("Complete", "Succeeded")):
        return READY
    return _waits(f"{status.get('succeeded', 0)} of {found['spec'].get('completions', 1)} succeeded")


def _farm_job(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    if (failed := _condition(status, "Failed")).get("status") == "True":
        return Readiness("failed", _told(failed))
    done = _condition(status, "Succeeded").get("status") == "True"
    return READY if done else _waits("it has not succeeded")


def _pod(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return (
            READY if phase == "Succeeded" else Readiness("failed", status.get("message") or "the pod failed")
        )
    ready = _condition(status, "Ready")
    return READY if ready.get("status") == "True" else _waits(_told(ready) or f"phase {phase}")


def _claim(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    """An unbound claim blocks nothing: its class may bind it for the first pod that uses it, which can be in
    a later wave. A pod whose claim stays unbound does not start, and is reported itself.
    """
    return Readiness("failed", "its volume is lost") if status.get("phase") == "Lost" else READY


def _definition(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    refused = _condition(status, "NamesAccepted")
    if refused.get("status") == "False":
        return Readiness("failed", _told(refused))
    there = _condition(status, "Established").get("status") == "True"
    return READY if there else _waits("it is not established")


def _service(found: Found, status: Found) -> Readiness:
    if found["spec"].get("type") != "LoadBalancer":
        return READY
    there = (status.get("loadBalancer") or {}).get("ingress")
    return READY if there else _waits("it has no load balancer address")


def _namespace(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    phase = status.get("phase", "Active")
    return READY if phase == "Active" else _waits(f"phase {phase}")


_RULES: dict[tuple[str, str], Callable[[Found, Found], Readiness]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("farmd.io", "FarmJob"): _farm_job,
    ("", "Pod"): _pod,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "Service"): _service,
    ("", "Namespace"): _namespace,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
}


# What no watch shows, or the app may not read, is looked at again after this time while a step waits for it.
LOOK_AGAIN_SECONDS = 10.0
# How servers say that a new object could have what this one cannot become: a selector, a stateful set's
# templates, a role of a binding, an address of a service, fields of a pod, the value of a priority class.
_FIXED = re.compile(
    r"immutable|may not (be )?change|cannot (be )?change|updates to \w+ spec for fields other than"
    r"|may not be (un)?set once|forbidden after creation|updates may not change",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found of one version of an object, for one entry."""

    entry: Entry
    found: Object
    live: Live

    def is_of(self, entry: Entry, found: Object) -> bool:
        """Whether it is this entry and this version."""
        meta, own = found["metadata"], self.found["metadata"]
        return self.entry == entry and all(meta[name] == own[name] for name in ("uid", "resourceVersion"))


class AppFacts:
    """The known objects of one app. ``cluster``: the id of farmd's cluster, which is in the marks.

    ``watching`` reports changes; without it every look reads every object.
    """

    def __init__(
        self,
        api: Api,
        app: str,
        cluster: str,
        clock: Clock,
        watching: Watching | None = None,
    ) -> None:
        self._api, self._app, self._cluster, self._clock = api, app, cluster, clock
        self._watching = watching
        self._resources: dict[tuple[str, str], Resource] = {}
        self._known: dict[Ref, _Known] = {}
        self._answers: dict[Ref, Object] = {}

    async def read(self, entries: Mapping[Ref, Entry], steady: bool) -> Mapping[Ref, Live]:  # noqa: ARG002
        """The objects that exist of these entries.

        Raises:
            StoreUnavailable: the API server does not answer.
        """
        found = {ref: live for ref, entry in entries.items() if (live := self._same(ref, entry)) is not None}
        done = set(found)
        if self._watching is not None:
            unknown = entries.keys() - done - self._known.keys() - self._answers.keys()
            done |= await absent((entries[ref].ref for ref in unknown), self._watched, self._watching)
        looks = await several(
            self.look, (entry for ref, entry in entries.items() if ref not in done), MOST_IN_FLIGHT
        )
        found |= {str(live.ref): live for live in looks if live is not None}
        self._known = {ref: known for ref, known in self._known.items() if ref in entries}
        self._answers = {ref: answer for ref, answer in self._answers.items() if ref in entries}
        others = self._others(found.values())  # what was read and is not there is gone, whatever they show
        return {**{ref: live for ref, live in others.items() if ref not in entries}, **found}

    def _others(self, found: Iterable[Live]) -> dict[Ref, Live]:
        """What bears the app's label besides these, as the watches show it: perhaps what a stopped owner
        made.
        """
        if self._watching is None:
            return {}
        known = {(live.ref.kind, live.ref.namespace, live.ref.name, live.version) for live in found}
        others = {}
        for resource, meta in self._watching.marked(self._resources.values(), self._app):
            if (resource.kind, meta.namespace, meta.name, meta.resource_version) in known:
                continue
            mark = mark_in(meta.annotations)
            if mark is None or mark.cluster != self._cluster:
                continue
            ref = TypedReference(
                api_version=resource.api_version, kind=resource.kind, namespace=meta.namespace, name=meta.name
            )
            others[str(ref)] = Live(
                ref=ref,
                owner=owner_of(mark.app),
                busy="is being deleted" if meta.terminating else "",
                seq=mark.seq,
                created=self._created(meta.creation_timestamp),
                version=meta.resource_version,
            )
        return others

    async def look(self, entry: Entry) -> Live | None:
        """One object; None: it does not exist. One that may not be read waits, with the server's reason.

        Raises:
            StoreUnavailable: the API server does not answer.
        """
        try:
            if (known := await self._unchanged(entry)) is not None:
                return known
            found = await self._api.get(entry.ref)
            return None if found is None else await self._live(entry, found)
        except Unavailable as error:
            raise StoreUnavailable(error.message) from error
        except KubernetesError as error:
            return self._unreadable(entry.ref, error.text or error.message)

    def _unreadable(self, ref: TypedReference, why: str) -> Live:
        """An object that may not be read now, which is not gone: the app's own, unless a watch shows that it
        is not.
        """
        resource = self._resources.get((ref.api_version, ref.kind))
        foreign = (
            self._watching is not None
            and resource is not None
            and self._watching.lacks(resource, ref, self._app)
        )
        owner = "" if foreign else owner_of(self._app)
        return Live(ref=ref, owner=owner, busy=why, settles=LOOK_AGAIN_SECONDS)

    def _shown(self, ref: TypedReference, version: str) -> bool:
        """Whether a watch has shown this version of an object, so that it will also show the next one."""
        resource = self._resources.get((ref.api_version, ref.kind))
        if self._watching is None or resource is None:
            return False
        return self._watching.version(resource, ref) == version

    async def _unchanged(self, entry: Entry) -> Live | None:
        """The last known state of an object, if a watch shows that it is unchanged; None: it must be read."""
        if self._watching is None or (resource := await self._watched(entry.ref)) is None:
            return None
        ref = str(entry.ref)
        answer = self._answers.pop(ref, None)
        version = self._watching.version(resource, entry.ref)
        if answer is not None and answer["metadata"]["resourceVersion"] == version:
            return await self._live(entry, answer)
        return self._same(ref, entry)

    def _same(self, ref: Ref, entry: Entry) -> Live | None:
        """What was found of an object, if nothing was written since and a watch shows that version still."""
        known = self._known.get(ref)
        if known is None or known.entry != entry:
            return None
        return known.live if self._shown(entry.ref, str(known.live.version)) else None

    async def _watched(self, ref: TypedReference) -> Resource | None:
        """The resource of an object, which is watched from now on; None: the server has no such kind, or
        nothing is watched.
        """
        if self._watching is None or (resource := await self._api.resource(ref)) is None:
            return None
        self._resources[ref.api_version, ref.kind] = resource
        self._watching.watch(resource)
        return resource

    async def _live(self, entry: Entry, found: Object) -> Live:
        ref = str(entry.ref)
        known = self._known.get(ref)
        if known is not None and known.is_of(entry, found):
            return known.live
        meta, mark = found["metadata"], mark_of(found)
        owner = marks.owner(found, self._cluster)
        verdict, busy = judge_last(found), leaving(found)
        differs: tuple[str, ...] = ()
        fixed, why = False, verdict.why
        if entry.document is not None and not busy and owner in ("", owner_of(self._app)):
            differs, fixed, refused = await self._differs(entry, found)
            why = refused or (marks.writer(found, marks.MANAGER) if differs else why)
            busy = refused
            if owner and not differs and await unreferenced(self._api, entry.ref, scopes_of(entry.document)):
                differs = ("scopes",)
        live = Live(
            ref=entry.ref,
            owner=owner,
            differs=differs,
            values=self._values(entry, found) if differs else (),
            fixed=fixed,
            verdict=verdict.state,
            why=why,
            busy=busy,
            seq=mark.seq if mark is not None and mark.cluster == self._cluster else 0,
            created=self._created(meta.get("creationTimestamp")),
            version=meta["resourceVersion"],
            settles=None if self._shown(entry.ref, meta["resourceVersion"]) else LOOK_AGAIN_SECONDS,
        )
        self._known[ref] = _Known(entry, found, live)
        return live

    def _created(self, told: str | None) -> float:
        """The last moment, by this farm's clock, at which an object can have been made: the server tells
        whole seconds by its own clock.
        """
        ahead = self._api.now() - self._clock.now()
        return seconds_since_epoch(told) + 1.0 - ahead

    async def _differs(self, entry: Entry, found: Object) -> tuple[tuple[str, ...], bool, str]:
        """The stated fields that are otherwise, whether they need a new object, and why that may not be."""
        assert entry.document is not None
        paths = marks.differing(marks.without(entry.document, entry.ignore), found)
        if not paths:
            return (), False, ""
        mark = mark_of(found)
        body = marks.with_live(entry.document, found, entry.ignore)
        try:
            after = await self._api.apply(
                entry.ref, marked(body, mark) if mark else body, found, force=True, dry=True
            )
        except Invalid as error:
            if not (_FIXED.search(error.message) or (entry.replace and await self._mends(entry))):
                return tuple(paths), False, error.text or error.message
            if entry.replace:
                return tuple(paths), True, ""
            told = ", ".join(sorted(error.causes)) or error.text
            return tuple(paths), False, f'{told} is immutable: farmd.io/replace: "true" replaces it'
        return (tuple(paths) if marks.changed(found, after) else ()), False, ""

    async def _mends(self, entry: Entry) -> bool:
        """Whether the server accepts a new object from the file: a dry run under an unused name."""
        assert entry.document is not None
        name = f"farmd-{hashlib.sha256(entry.ref.name.encode()).hexdigest()[:16]}"
        body = {**entry.document, "metadata": {**entry.document["metadata"], "name": name}}
        try:
            await self._api.apply(replace(entry.ref, name=name), body, None, force=True, dry=True)
        except (Invalid, Denied):
            return False
        return True

    @staticmethod
    def _values(entry: Entry, found: Object) -> tuple[str, ...]:
        """What an apply changes, for people."""
        assert entry.document is not None
        return tuple(marks.values(marks.without(entry.document, entry.ignore), found))

    # -- what was read and written last ------------------------------------------------------------
    def _found(self, ref: TypedReference) -> Object | None:
        """An object as it was read last."""
        known = self._known.get(str(ref))
        return None if known is None else known.found

    def _forget(self, ref: TypedReference) -> Object | None:
        """Read an object again at the next look, because it is being written. Returns its last known
        state.
        """
        found = self._found(ref)
        self._known.pop(str(ref), None)
        self._answers.pop(str(ref), None)
        return found

    async def _wrote(self, ref: TypedReference, made: Object) -> None:
        """Note the server's answer to an own write. It counts until a watch shows a later version."""
        self._answers[str(ref)] = made
        if self._watching is not None and (resource := await self._watched(ref)) is not None:
            self._watching.own(resource, made)
