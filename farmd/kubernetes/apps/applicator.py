"""The objects of an app in Kubernetes: read, judged, applied, collected (``dispatch.ports.Objects``).

The server itself applies documents and says what would change. What must never break: each write names the
uid and the version that were read, the mark is written with the object, a field that the document ignores
keeps its live value, and an object that nobody allowed the app to take is never touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farmd.dispatch.model import Act, Live, Ref, Rehearsal, owner_of
from farmd.dispatch.scopes import scopes_of
from farmd.jobs.objects import seconds_since_epoch
from farmd.kubernetes.apps import compare, marks
from farmd.kubernetes.apps.absence import absent
from farmd.kubernetes.apps.api import Api, Object, taken_over, user_of
from farmd.kubernetes.apps.marks import Mark, mark_in, mark_of, marked
from farmd.kubernetes.apps.order import FOUNDATIONS, ordered
from farmd.kubernetes.apps.scopes import dereference_scopes, reference_scopes, unreferenced
from farmd.kubernetes.apps.verdicts import READY, judge
from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.errors import (
    Conflict,
    FieldsTaken,
    Forbidden,
    Invalid,
    KubernetesError,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from farmd.kubernetes.pace import MOST_IN_FLIGHT
from farmd.kubernetes.resources import Resource
from store.apps import Entry, TypedReference
from store.errors import OutcomeUnknown, StoreUnavailable
from store.ports import Clock

FOUNDED_SECONDS = 5.0
PAUSE_SECONDS = 0.2


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


class Applicator:
    """The objects of one app. ``cluster`` is the id of farmd's cluster, which the marks bear.

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
        self._resources: set[Resource] = set()
        self._known: dict[Ref, _Known] = {}
        self._answers: dict[Ref, Object] = {}
        self._gate = asyncio.Semaphore(MOST_IN_FLIGHT)

    # -- reading -------------------------------------------------------------------------------
    async def read(self, entries: Mapping[Ref, Entry], steady: bool) -> Mapping[Ref, Live]:  # noqa: ARG002
        """The objects that exist of these entries.

        Raises:
            StoreUnavailable: the API server does not answer.
        """
        missing: set[Ref] = set()
        if self._watching is not None:
            unknown = entries.keys() - self._known.keys() - self._answers.keys()
            missing = await absent((entries[ref].ref for ref in unknown), self._watched, self._watching)
        looks = await asyncio.gather(
            *(self.look(entry) for ref, entry in entries.items() if ref not in missing)
        )
        self._known = {ref: known for ref, known in self._known.items() if ref in entries}
        self._answers = {ref: answer for ref, answer in self._answers.items() if ref in entries}
        found = {str(live.ref): live for live in looks if live is not None}
        return {**self._others(found.values()), **found}

    def _others(self, found: Iterable[Live]) -> dict[Ref, Live]:
        """What bears the app's label besides these, as the watches show it: perhaps what a stopped owner
        made.
        """
        if self._watching is None:
            return {}
        known = {(live.ref.kind, live.ref.namespace, live.ref.name, live.version) for live in found}
        others = {}
        for resource, meta in self._watching.marked(self._resources, self._app):
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
        async with self._gate:
            try:
                if (known := await self._unchanged(entry)) is not None:
                    return known
                found = await self._api.get(entry.ref)
                return None if found is None else await self._live(entry, found)
            except Unavailable as error:
                raise StoreUnavailable(error.message) from error
            except KubernetesError as error:
                return Live(ref=entry.ref, busy=error.text or error.message)

    async def _unchanged(self, entry: Entry) -> Live | None:
        """What was found or written of an object, if a watch shows that it is the same; None: it must be
        read.
        """
        if self._watching is None or (resource := await self._watched(entry.ref)) is None:
            return None
        version = self._watching.version(resource, entry.ref)
        answer = self._answers.pop(str(entry.ref), None)
        if answer is not None and answer["metadata"]["resourceVersion"] == version:
            return await self._live(entry, answer)
        known = self._known.get(str(entry.ref))
        if known is None or known.entry != entry or known.live.version != version:
            return None
        return known.live

    async def _watched(self, ref: TypedReference) -> Resource | None:
        """The resource of an object, which is watched from now on; None: the server has no such kind, or
        nothing is watched.
        """
        if self._watching is None or (resource := await self._api.resource(ref)) is None:
            return None
        self._resources.add(resource)
        self._watching.watch(resource)
        return resource

    async def _live(self, entry: Entry, found: Object) -> Live:
        ref = str(entry.ref)
        known = self._known.get(ref)
        if known is not None and known.is_of(entry, found):
            return known.live
        meta, mark = found["metadata"], mark_of(found)
        owner = marks.owner(found, self._cluster)
        verdict, busy = judge(found), ""
        if meta.get("deletionTimestamp"):
            busy = verdict.why
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
            fixed=fixed,
            verdict=verdict.state,
            why=why,
            busy=busy,
            seq=mark.seq if mark is not None and mark.cluster == self._cluster else 0,
            created=self._created(meta.get("creationTimestamp")),
            version=meta["resourceVersion"],
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
            if "immutable" not in error.message:
                return tuple(paths), False, error.text or error.message
            if entry.replace:
                return tuple(paths), True, ""
            told = ", ".join(sorted(error.causes)) or error.text
            return tuple(paths), False, f'{told} is immutable: farmd.io/replace: "true" makes it anew'
        return (tuple(paths) if compare.changed(found, after) else ()), False, ""

    async def rehearse(self, act: Act) -> Rehearsal:
        """What the server says of a creation or an adoption, by a dry run."""
        async with self._gate:
            try:
                known = self._known.get(str(act.ref))
                await self._bring(act, None if known is None else known.found, self._mark(0), dry=True)
            except FieldsTaken as error:
                return Rehearsal(refused=_taken(error))
            except Invalid as error:
                return Rehearsal(refused=error.text or error.message)
            except KubernetesError as error:
                return Rehearsal(note=f"cannot be tried now: {error.text or error.message}")
        return Rehearsal(note="server dry run: ok")

    # -- writing -------------------------------------------------------------------------------
    async def act(self, acts: Sequence[Act], seq: int) -> Mapping[Ref, str]:
        """Carry acts out, kind by kind in their order; the reasons of those that must wait.

        Raises:
            OutcomeUnknown: nobody knows whether something was written.
        """
        waiting: dict[Ref, str] = {}
        for group in ordered(acts):
            told = await asyncio.gather(*(self._one(act, seq) for act in group))
            waiting |= {str(act.ref): why for act, why in zip(group, told, strict=True) if why}
            if group[0].ref.kind in FOUNDATIONS and group[0].verb != "remove":
                await self._founded([act for act in group if str(act.ref) not in waiting])
        return waiting

    async def _one(self, act: Act, seq: int) -> str:
        """One act; why it must wait, empty if it is done."""
        async with self._gate:
            try:
                await self._write(act, seq)
            except UnknownOutcome as error:
                self._known.pop(str(act.ref), None)
                raise OutcomeUnknown(error.message) from error
            except FieldsTaken as error:
                return _taken(error)
            except (Conflict, NotFound, Forbidden, Invalid, Unavailable) as error:
                return f"as {user_of(self._app)}: {error.text or error.message}"
        return ""

    async def _write(self, act: Act, seq: int) -> None:
        known = self._known.pop(str(act.ref), None)
        self._answers.pop(str(act.ref), None)
        if act.verb == "create":
            await self._bring(act, None, self._mark(seq))
            return
        found = known.found if known is not None else await self._api.get(act.ref)
        match act.verb:
            case "remove" | "replace" if found is not None:
                await dereference_scopes(self._api, act.ref, scopes_of(found))
                await self._api.delete(act.ref, found)
            case "release" if found is not None:
                await self._api.mark(act.ref, found, {marks.LABEL: None}, {marks.APPLIED: None})
            case "hand" if found is not None:
                texts = {marks.APPLIED: str(Mark(self._cluster, act.to, 0))}
                await self._api.mark(act.ref, found, {marks.LABEL: act.to}, texts)
            case "update" | "repair" | "adopt" if found is not None:
                await self._bring(act, found, self._mark(seq))

    def _mark(self, seq: int) -> Mark:
        return Mark(self._cluster, self._app, seq)

    async def _bring(self, act: Act, found: Object | None, mark: Mark, *, dry: bool = False) -> None:
        """Make an object, or bring one that is there to what its document says."""
        entry = act.entry
        assert entry is not None
        assert entry.document is not None
        scopes = scopes_of(entry.document)
        if found is None:
            try:
                made = await self._api.apply(
                    act.ref, marked(entry.document, mark), None, force=False, dry=dry
                )
            except Conflict as error:
                raise Conflict("it was made meanwhile by somebody else", status=error.status) from error
        else:
            if not dry:
                left = [scope for scope in scopes_of(found) if scope not in scopes]
                await dereference_scopes(self._api, act.ref, left)
            made = await self._change(act, entry.document, found, mark, dry=dry)
        if not dry:
            self._answers[str(act.ref)] = made
            if self._watching is not None and (resource := await self._watched(act.ref)) is not None:
                self._watching.own(resource, made)
            await reference_scopes(self._api, act.ref, scopes)

    async def _change(
        self, act: Act, document: Mapping[str, Any], found: Object, mark: Mark, *, dry: bool
    ) -> Object:
        if act.verb == "adopt" and not dry:
            found = await self._api.take_over(act.ref, found)
        assert act.entry is not None
        body = marked(compare.with_live(document, found, act.entry.ignore), mark)
        try:
            return await self._api.apply(
                act.ref, body, found, force=act.verb != "adopt" or act.force, dry=dry
            )
        except FieldsTaken as error:
            if not (dry and all(map(taken_over, error.causes.values()))):
                raise
            return found

    async def _founded(self, acts: Sequence[Act]) -> None:
        """Wait for a moment until what others live in is there; else these are refused, and tried later."""
        until = self._clock.mono() + FOUNDED_SECONDS
        for act in acts:
            while self._clock.mono() < until:
                found = await self._api.get(act.ref)
                if found is not None and judge(found) == READY:
                    break
                await self._clock.sleep(PAUSE_SECONDS)

    # -- following -----------------------------------------------------------------------------
    def follow(self, refs: Collection[Ref]) -> None:
        """The watches tell of all objects with the app's label."""

    def unfollow(self) -> None:
        """The worker ended."""
        if self._watching is not None:
            self._watching.detach(self._app)


def _taken(error: FieldsTaken) -> str:
    """Why an object is not adopted whose fields others manage."""
    return f"{error.text}; --force-conflicts takes them"
