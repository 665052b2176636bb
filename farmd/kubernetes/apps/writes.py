"""The writes of an app in Kubernetes: its objects in order, applied, marked, collected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from farmd.apps.facts import Act, Ref, Rehearsal, owner_of
from farmd.apps.objects import scopes_in, scopes_of
from farmd.apps.protocols import OutsideUnknown
from farmd.kubernetes.apps import marks
from farmd.kubernetes.apps.api import Api, Discovery, Object, taken_over, unstated, user_of
from farmd.kubernetes.apps.facts import READY, AppFacts, judge
from farmd.kubernetes.apps.marks import OwnerMark, marked
from farmd.kubernetes.apps.scopes import dereference_scopes, reference_scopes
from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.contact import KubernetesSettings
from farmd.kubernetes.errors import Conflict, Denied, FieldsTaken, Invalid, KubernetesError, UnknownOutcome
from farmd.kubernetes.pace import MOST_IN_FLIGHT
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from store.apps import TypedReference
from store.ports import Clock, Rng
from store.several import several
from store.words import listed

# The order in which the objects of one step are applied: what others live in or are made of comes first.
#
# It is Helm's order of kinds; any other kind comes last. Removal goes the other way.

_KINDS = (
    "PriorityClass",
    "Namespace",
    "CustomResourceDefinition",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "DaemonSet",
    "Pod",
    "ReplicationController",
    "ReplicaSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "StatefulSet",
    "Job",
    "CronJob",
    "IngressClass",
    "Ingress",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)
_PLACES = {kind: place for place, kind in enumerate(_KINDS)}
# What others need: nothing else is applied before these are ready.
FOUNDATIONS = frozenset({"Namespace", "CustomResourceDefinition"})


def ordered(acts: Sequence[Act]) -> list[list[Act]]:
    """The acts in groups that are carried out one after the other: those that remove, then the others."""
    gone = [act for act in acts if act.verb == "remove"]
    rest = [act for act in acts if act.verb != "remove"]
    return [*reversed(_groups(gone)), *_groups(rest)]


def _groups(acts: Sequence[Act]) -> list[list[Act]]:
    found: dict[int, list[Act]] = {}
    for act in acts:
        found.setdefault(_PLACES.get(act.ref.kind, len(_KINDS)), []).append(act)
    return [found[place] for place in sorted(found)]


# The objects of an app in Kubernetes: applied, marked, collected (``dispatch.ports.Objects``).
#
# What must never break: each write names the uid and the version that were read, the mark is written with
# the object, a field that the document ignores keeps its live value, and an object that nobody allowed the
# app to take is never touched.

FOUNDED_SECONDS = 5.0
MOST_FIELDS = 50
PAUSE_SECONDS = 0.2


class Applicator(AppFacts):
    """Rehearses and carries out the acts of one app."""

    async def rehearse(self, act: Act) -> Rehearsal:
        """The server's answer to a creation or an adoption in a dry run."""
        found = self._found(act.ref)
        try:
            await self._bring(act, found, self._mark(0), dry=True)
        except FieldsTaken as error:
            return Rehearsal(refused=_taken(error))
        except (Invalid, Denied) as error:
            return Rehearsal(refused=error.text or error.message)
        except KubernetesError as error:
            return Rehearsal(note=f"cannot be tried now: {error.text or error.message}")
        return Rehearsal(note=f"server dry run: ok{_unstated(act, found)}")

    async def act(self, acts: Sequence[Act], seq: int) -> Mapping[Ref, str]:
        """Carry acts out, kind by kind in their order; the reasons of those that must wait.

        Raises:
            OutsideUnknown: nobody knows whether something was written; nothing is written any more.
        """
        waiting: dict[Ref, str] = {}
        for group in ordered(acts):
            told = await several(partial(self._one, seq), group, MOST_IN_FLIGHT)
            waiting |= {str(act.ref): why for act, why in zip(group, told, strict=True) if why}
            if group[0].ref.kind in FOUNDATIONS and group[0].verb != "remove":
                await self._founded([act for act in group if str(act.ref) not in waiting])
        return waiting

    async def _one(self, seq: int, act: Act) -> str:
        """One act; why it must wait, empty if it is done."""
        try:
            await self._write(act, seq)
        except UnknownOutcome as error:
            self._forget(act.ref)
            raise OutsideUnknown(error.message) from error
        except FieldsTaken as error:
            return _taken(error)
        except KubernetesError as error:
            return f"as {user_of(self._app)}: {error.text or error.message}"
        return ""

    async def _write(self, act: Act, seq: int) -> None:
        known = self._forget(act.ref)
        if act.verb == "create":
            await self._bring(act, None, self._mark(seq))
            return
        found = known or await self._unread(act)
        match act.verb:
            case "remove" | "replace" if found is not None:
                await dereference_scopes(self._api, act.ref, scopes_in(found))
                await self._api.delete(act.ref, found)
            case "release" if found is not None:
                await self._api.mark(act.ref, found, {marks.LABEL: None}, {marks.APPLIED: None})
            case "hand" if found is not None:
                texts = {marks.APPLIED: str(OwnerMark(self._cluster, act.to, 0))}
                await self._api.mark(act.ref, found, {marks.LABEL: act.to}, texts)
            case "update" | "repair" | "adopt" if found is not None:
                await self._bring(act, found, self._mark(seq))

    async def _unread(self, act: Act) -> Object | None:
        """An object that was not read before the plan, because a watch alone showed it: the app's own still.

        Raises:
            Conflict: somebody else has it by now.
        """
        found = await self._api.get(act.ref)
        own = found is None or marks.owner(found, self._cluster) == owner_of(self._app)
        if not (own or act.verb == "adopt"):
            raise Conflict("it no longer belongs to the app", status=409)
        return found

    def _mark(self, seq: int) -> OwnerMark:
        return OwnerMark(self._cluster, self._app, seq)

    async def _bring(self, act: Act, found: Object | None, mark: OwnerMark, *, dry: bool = False) -> None:
        """Create an object, or change an existing one to match its document."""
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
                raise Conflict("somebody else created it in the meantime", status=error.status) from error
        else:
            if not dry:
                left = [scope for scope in scopes_in(found) if scope not in scopes]
                await dereference_scopes(self._api, act.ref, left)
            made = await self._change(act, entry.document, found, mark, dry=dry)
        if not dry:
            await self._wrote(act.ref, made)
            await reference_scopes(self._api, act.ref, scopes)

    async def _change(
        self, act: Act, document: Mapping[str, Any], found: Object, mark: OwnerMark, *, dry: bool
    ) -> Object:
        if act.inherits and not dry:
            found = await self._api.take_over(act.ref, found)
        assert act.entry is not None
        body = marked(marks.with_live(document, found, act.entry.ignore), mark)
        try:
            return await self._api.apply(
                act.ref, body, found, force=act.verb != "adopt" or act.force, dry=dry
            )
        except FieldsTaken as error:
            if not (dry and act.inherits and all(map(taken_over, error.causes.values()))):
                raise
            return found

    async def _founded(self, acts: Sequence[Act]) -> None:
        """Wait for a moment until what others live in is there; else these are refused, and tried later."""
        until = self._clock.mono() + FOUNDED_SECONDS
        for act in acts:
            while self._clock.mono() < until and not await self._stands(act.ref):
                await self._clock.sleep(PAUSE_SECONDS)

    async def _stands(self, ref: TypedReference) -> bool:
        """Whether an object exists and is ready, as far as the server shows it now."""
        try:
            found = await self._api.get(ref)
        except KubernetesError:
            return False
        return found is not None and judge(found) == READY

    def follow(self, refs: Collection[Ref]) -> None:
        """The watches tell of all objects with the app's label."""

    def unfollow(self) -> None:
        """The worker ended."""
        if self._watching is not None:
            self._watching.detach(self._app)


def _unstated(act: Act, found: Object | None) -> str:
    """What kubectl applied and the file does not state, which an adoption that inherits it takes away."""
    if found is None or not act.inherits or act.entry is None or act.entry.document is None:
        return ""
    gone = unstated(found, act.entry.document)
    return f"; removed, because the file does not set it: {listed(gone, MOST_FIELDS)}" if gone else ""


def _taken(error: FieldsTaken) -> str:
    """Why an object with fields of other managers is not adopted."""
    return f"{error.text}; --force-conflicts takes them over"


# Where apps' workers find the objects that lie in Kubernetes (``farmd.apps.protocols.Elsewhere``).


class AppsCluster:
    """One cluster for all apps of a farm: they share what it serves and what is watched there."""

    def __init__(self, settings: KubernetesSettings, watching: Watching) -> None:
        self._transport, self._watching = settings.transport, watching
        self._discovery = Discovery(settings.transport)

    def __call__(self, context: Context, app: str, wake: Wake, validity: Callable[[], float]) -> Applicator:
        """The objects of one app; ``validity``: see ``Api``."""
        api = Api(self._transport, self._discovery, app, validity)
        self._watching.attach(app, wake)
        return Applicator(api, app, context.cluster, context.clock, self._watching)


@asynccontextmanager
async def opened(settings: KubernetesSettings, clock: Clock, rng: Rng) -> AsyncIterator[AppsCluster]:
    """A cluster whose watches end with the farm."""
    watching = Watching(settings.transport, settings.namespaces, clock, rng)
    try:
        yield AppsCluster(settings, watching)
    finally:
        await watching.close()
