"""The objects of an app in Kubernetes as they stand: read, judged, and compared with their documents.

The server itself says what a document would change, by a dry run. What a watch shows to be the version that
was read or written last is not read again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from farmd.apps.facts import Live, Ref, owner_of
from farmd.apps.objects import scopes_of
from farmd.jobs.objects import seconds_since_epoch
from farmd.kubernetes.apps import compare, marks
from farmd.kubernetes.apps.absence import absent
from farmd.kubernetes.apps.api import Api, Object
from farmd.kubernetes.apps.marks import mark_in, mark_of, marked
from farmd.kubernetes.apps.scopes import unreferenced
from farmd.kubernetes.apps.verdicts import judge_last, leaving
from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.errors import Denied, Invalid, KubernetesError, Unavailable
from farmd.kubernetes.pace import MOST_IN_FLIGHT
from farmd.kubernetes.resources import Resource
from store.apps import Entry, TypedReference
from store.errors import StoreUnavailable
from store.ports import Clock
from store.several import several

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
    """The objects of one app as they are known. ``cluster``: the id of farmd's cluster, which marks bear.

    ``watching`` tells of changes; without it every look reads every object.
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
        """Whether a watch shows this version of an object, and so will tell of the next one."""
        resource = self._resources.get((ref.api_version, ref.kind))
        if self._watching is None or resource is None:
            return False
        return self._watching.version(resource, ref) == version

    async def _unchanged(self, entry: Entry) -> Live | None:
        """What was found or written of an object, if a watch shows that it is the same; None: it must be
        read.
        """
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
            why = refused or (compare.writer(found, marks.MANAGER) if differs else why)
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
        paths = compare.differing(compare.without(entry.document, entry.ignore), found)
        if not paths:
            return (), False, ""
        mark = mark_of(found)
        body = compare.with_live(entry.document, found, entry.ignore)
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
            return tuple(paths), False, f'{told} is immutable: farmd.io/replace: "true" makes it anew'
        return (tuple(paths) if compare.changed(found, after) else ()), False, ""

    async def _mends(self, entry: Entry) -> bool:
        """Whether the server takes a new object as the file says, by a dry run under a name that is free."""
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
        return tuple(compare.values(compare.without(entry.document, entry.ignore), found))

    # -- what was read and written last ------------------------------------------------------------
    def _found(self, ref: TypedReference) -> Object | None:
        """An object as it was read last."""
        known = self._known.get(str(ref))
        return None if known is None else known.found

    def _forget(self, ref: TypedReference) -> Object | None:
        """Read an object anew at the next look, because it is written now; as it was read last."""
        found = self._found(ref)
        self._known.pop(str(ref), None)
        self._answers.pop(str(ref), None)
        return found

    async def _wrote(self, ref: TypedReference, made: Object) -> None:
        """The server's answer to an own write: it counts until a watch tells of a later version."""
        self._answers[str(ref)] = made
        if self._watching is not None and (resource := await self._watched(ref)) is not None:
            self._watching.own(resource, made)
