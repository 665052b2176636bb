"""A farm's contact with one cluster: its settings, its identity, missing resources and rights, and whether
it answers.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from alerting.alert import Alert, one_line
from farmd.config.kubernetes import INIT_IMAGE, KNATIVE_NAMESPACE, RESYNC_SECONDS, KubernetesSection
from farmd.farm.alerts import Incidents
from farmd.kubernetes.access import access
from farmd.kubernetes.errors import KubernetesError, NotFound, UnexpectedAnswer, decoded
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.objects import NAMESPACES
from farmd.kubernetes.pace import Priority
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.work.context import Context
from store import codec, operations
from store.entry import Stored
from store.errors import CredentialInvalid, RecordInvalid, StoreError
from store.farms import CLUSTERS, ClusterReport, PinnedCluster
from store.ports import Clock, Recorder, Rng
from store.words import alike, listed

# Whether the definitions that a cluster serves have all the fields that this version of farmd knows.
#
# The API server drops fields that a definition lacks, without a word. It publishes the schemas that it
# serves to everyone who may log in, so a farm needs no right to read the definitions themselves.

KIND = "x-kubernetes-group-version-kind"


async def lacking(transport: KubernetesTransport, definition: Mapping[str, Any]) -> list[str]:
    """The fields of a definition that the server's version does not have; none while the server has no such
    resource.

    Raises:
        KubernetesError: the server does not tell.
    """
    spec = definition["spec"]
    found = []
    for version in spec["versions"]:
        path = f"/openapi/v3/apis/{spec['group']}/{version['name']}"
        try:
            answer = await transport.send(ApiRequest("GET", path))
        except NotFound:
            continue
        served = _schema(answer, spec["names"]["kind"], path)
        if served is not None:
            found += list(_missing(version["schema"]["openAPIV3Schema"], served, ""))
    return found


def _schema(answer: bytes, kind: str, path: str) -> Mapping[str, Any] | None:
    try:
        schemas = json.loads(answer)["components"]["schemas"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"{path}: the answer is not from a Kubernetes API server: {error}") from error
    return next(
        (one for one in schemas.values() if any(each["kind"] == kind for each in one.get(KIND, ()))), None
    )


def _missing(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> Iterator[str]:
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    served = theirs.get("properties") or {}
    for name, each in (ours.get("properties") or {}).items():
        where = f"{path}.{name}" if path else name
        if name not in served:
            yield where
        elif "$ref" not in served[name]:
            yield from _missing(each, served[name], where)
    for inner in ("items", "additionalProperties"):
        if isinstance(ours.get(inner), dict):
            yield from _missing(ours[inner], theirs.get(inner) or {}, f"{path}[]")


# Which cluster answers: the uid of its namespace kube-system, which no cluster shares with another.

# Answers that do not tell it, and mean that the API server works.
ANSWERED = frozenset({403, 404, 429})


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


async def uid_of(transport: KubernetesTransport, seconds: float, priority: Priority = Priority.READ) -> str:
    """The uid of the cluster; empty if the server answers without it.

    Raises:
        KubernetesError: no answer within so many seconds, or none of an API server.
    """
    request = ApiRequest("GET", NAMESPACES.path(name="kube-system"), priority=priority)
    try:
        answer = await transport.send(request, seconds)
    except KubernetesError as error:
        if error.status in ANSWERED and error.reason:
            return ""
        raise
    return decoded(answer, _Namespace, str(request)).metadata.uid


# Which cluster a name stands for: ``meta/kubernetes/<name>``, pinned at the first contact.
#
# Farms that share the name share the cluster. An address may come to lead to another one; what a farm knows
# of the first must never be taken for the second's, so another uid stops the work until a person accepts
# it.

# A person may accept another cluster while this farm still reaches the first.
READ_AGAIN_SECONDS = 60.0


class Pin:
    """What is pinned under a cluster's name, as this farm read it last.

    ``settled``: the API server was compared with it. ``trouble``: why it is not the cluster that is meant.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context, self._name = context, name
        self._key = context.keys.other_cluster(name)
        self._stored: Stored[PinnedCluster] | None = None
        self._read_at = -math.inf
        self.settled = False
        self.trouble = ""

    @property
    def record(self) -> PinnedCluster:
        """The record; an empty one before it was written."""
        return PinnedCluster() if self._stored is None else self._stored.record

    async def compare(self, uid: str) -> None:
        """Compare the API server's uid with the pinned one, or pin it; an empty one cannot be compared.

        Raises:
            StoreError: the store could not be asked, or another farm was faster; try again.
        """
        old = self._context.clock.mono() - self._read_at >= READ_AGAIN_SECONDS
        try:
            if old or uid not in ("", self.record.uid):
                await self.read()
        except RecordInvalid as error:
            self.trouble = error.message
            return
        if uid and not self.record.uid:
            now, by = self._context.clock.now(), self._context.actor
            await self.write(msgspec.structs.replace(self.record, uid=uid, by=by, since=now))
        self.settled = True
        self.trouble = self._compared(uid)

    def _compared(self, uid: str) -> str:
        if not uid or uid == self.record.uid:
            return ""
        return (
            f"found the uid {uid} of its namespace kube-system, expected {self.record.uid}: another cluster"
            f" answers; if it is the one that is meant: farmctl kubernetes accept --name {self._name}"
        )

    async def read(self) -> None:
        """Read the record.

        Raises:
            RecordInvalid: it does not decode.
        """
        entry = await self._context.client.read(self._key, mode="consistent")
        self._stored = None if entry is None else codec.stored(PinnedCluster, entry)
        self._read_at = self._context.clock.mono()

    async def write(self, record: PinnedCluster) -> None:
        """Replace the record as it was read.

        Raises:
            TransactionRejected: it has changed since.
        """
        before = self._stored
        value = codec.encode(record) if before is None else codec.rewrite(record, before.raw)
        index = 0 if before is None else before.index
        self._read_at = -math.inf  # until it is answered
        await self._context.client.transaction([operations.cas(self._key, value, index)])
        await self.read()


# What a farm cannot do in a cluster: told to people by alerts, and in the farm's presence to the doctor.
#
# Farms that share a cluster share its incidents. Those that are open stand in the pinned record: the farm
# that enters one fires it, and the last farm that has the trouble, or any after it, ends it.

LASTING_SECONDS = 60.0
# The troubles that people are alerted of, and what their summaries say.
ALERTED = {
    "unreachable": "farms cannot reach it",
    "denied": "farms lack rights",
    "identity": "removals are frozen",
}


class Troubles:
    """The troubles of one cluster, as one farm has them."""

    def __init__(self, context: Context, name: str, pin: Pin) -> None:
        self._context, self._name, self._pin = context, name, pin
        self._incidents = Incidents(context.alerter)
        self._ended: set[str] = set()
        self._since: dict[str, float] = {}
        self._said: dict[str, str] = {}

    async def tell(self, found: Mapping[str, str], report: ClusterReport) -> None:
        """Report the present troubles, in words by code, besides those that are in the report already.

        Raises:
            StoreError: the incidents could not be read or written; try again.
        """
        now = self._context.clock.mono()
        self._since = {code: self._since.get(code, now) for code in found}
        lasting = {code: found[code] for code in found if now - self._since[code] >= LASTING_SECONDS}
        # Another number alone is no news.
        self._said = {
            code: self._said[code] if alike(self._said.get(code, ""), text) else text
            for code, text in lasting.items()
        }
        self._context.features.report(self._name, msgspec.structs.replace(report, troubles=dict(self._said)))
        await self._alert(found)

    async def _alert(self, found: Mapping[str, str]) -> None:
        if self._wanted(found) != set(self._pin.record.alerts):
            await self._pin.read()
        before, wanted = set(self._pin.record.alerts), self._wanted(found)
        for key in before - self._ended:
            self._incidents.inherit(key)
        for key in set(self._incidents.open()) - wanted:
            await self._incidents.end(key, "high")
            self._ended.add(key)
        wanted |= self._incidents.owed()
        if wanted != before:
            await self._pin.write(msgspec.structs.replace(self._pin.record, alerts=sorted(wanted)))
        # What this farm ended stands in the record until its end is delivered.
        self._ended &= wanted
        for code in ALERTED.keys() & self._said.keys():
            await self._incidents.tell(self._alert_of(code))

    def _wanted(self, found: Mapping[str, str]) -> set[str]:
        """The incidents that should be open: those of lasting troubles, and open ones that some farm has."""
        lasting = {self._key(code) for code in ALERTED.keys() & self._said.keys()}
        held = {self._key(code) for code in found}
        for stored in self._context.caches.farms.entries.values():
            report = stored.record.clusters.get(self._name)
            if report is not None and stored.record.id != self._context.farm:
                held |= {self._key(code) for code in report.troubles}
        return lasting | (set(self._pin.record.alerts) & held)

    def _key(self, code: str) -> str:
        return f"kubernetes_{code}_{self._name}"

    def _alert_of(self, code: str) -> Alert:
        summary = f"Kubernetes {self._name!r}: {ALERTED[code]}: {self._said[code]}"
        details = {"cluster": self._name, "farm": self._context.farm}
        return Alert(
            summary=one_line(summary),
            incident_key=self._key(code),
            urgency="high",
            details=details,
            labels={"kind": "kubernetes"},
        )


# A farm's contact with one cluster: whether it reaches it, and whether it is the one that is meant.
#
# All kinds of work in the cluster share it. The farm knows the cluster's feature while both are so, and its
# items go to other farms otherwise (R11). What it cannot do it tells people (``troubles.py``).

log = structlog.get_logger()

LOOK_SECONDS = 5.0
ANSWER_SECONDS = 8.0
UNREACHED_SECONDS = 30.0
CONFIRMED_SECONDS = 1.0
DEFINITIONS_SECONDS = 600.0
SKEWED_SECONDS = 30.0
MOST_DENIALS = 3


class Contact:
    """The contact with one cluster; ``informers`` are those of all kinds of work there, ``definitions`` those
    of farmd's own resources that they need, by name. ``feature`` is what a farm knows while it reaches this
    cluster, and the cluster's items need (R11). ``report`` is what it says of the cluster by its settings.
    """

    def __init__(self, transport: KubernetesTransport, name: str, report: ClusterReport) -> None:
        self.feature = f"{CLUSTERS}{name}"
        self.informers: list[Informer[Any]] = []
        self.definitions: dict[str, Mapping[str, Any]] = {}
        self._transport, self._name, self._report = transport, name, report
        self._uid = ""
        self._error = "not queried yet"
        self._reached = self._confirmed = -math.inf
        self._older: dict[str, list[str]] = {}
        self._compared = -math.inf
        self._pin: Pin | None = None
        self._one = asyncio.Lock()

    def stranger(self) -> str | None:
        """Evidence: another cluster answers than the one that is meant (R19)."""
        if self._pin is None or not self._pin.trouble:
            return None
        return f"kubernetes {self._name}: it is another cluster than before"

    async def run(self, context: Context) -> None:
        """Look now and then until cancelled; once, however many kinds call it."""
        async with self._one:
            self._pin = Pin(context, self._name)
            troubles = Troubles(context, self._name, self._pin)
            while True:
                try:
                    await self._look(context, self._pin)
                    await self._compare(context.clock)
                    report = msgspec.structs.replace(self._report, uid=self._uid)
                    await troubles.tell(self._found(context), report)
                except StoreError as error:
                    log.debug("kubernetes.not_told", cluster=self._name, code=error.code)
                await context.clock.sleep(LOOK_SECONDS)

    async def confirm(self, context: Context) -> None:
        """Prove that what is missing there is missing in the very cluster that is meant.

        Raises:
            KubernetesError: it is another one, or does not answer.
        """
        if context.clock.mono() - self._confirmed > CONFIRMED_SECONDS:
            uid = await uid_of(self._transport, ANSWER_SECONDS)
            if self._pin is None or not self._pin.settled or uid not in ("", self._pin.record.uid):
                raise UnexpectedAnswer(f"kubernetes {self._name}: it is another cluster than before")
            self._confirmed = context.clock.mono()

    def publish(self, recorder: Recorder) -> None:
        """Write what a scrape needs: what is known by watches, and how old it is."""
        for label in {informer.source.label for informer in self.informers}:
            alike = [each for each in self.informers if each.source.label == label]
            recorder.set("farmd_informer_objects", sum(len(each.store) for each in alike), resource=label)
            broken = sum(len(each.store.broken) for each in alike)
            recorder.set("farmd_invalid_records", broken, family=f"kubernetes_{label}")
            age = max(each.staleness() for each in alike)
            recorder.set("farmd_watch_staleness_seconds", age, watch=f"kubernetes_{label}")

    async def _look(self, context: Context, pin: Pin) -> None:
        clock = context.clock
        try:
            self._uid = await uid_of(self._transport, ANSWER_SECONDS, Priority.PROBE)
            self._reached, self._error = clock.mono(), ""
        except (KubernetesError, CredentialInvalid) as error:
            log.debug("kubernetes.unreached", cluster=self._name, error=error.message)
            self._error = error.message
        try:
            if not self._error:
                await pin.compare(self._uid)
        finally:
            reaches = clock.mono() - self._reached <= UNREACHED_SECONDS
            if reaches and pin.settled and not pin.trouble:
                context.features.add(self.feature)
            else:
                context.features.withdraw(self.feature)

    async def _compare(self, clock: Clock) -> None:
        """Look now and then whether the cluster's definitions are older than this version."""
        if self._error or clock.mono() - self._compared < DEFINITIONS_SECONDS:
            return
        self._compared = clock.mono()
        for name, definition in self.definitions.items():
            try:
                self._older[name] = await lacking(self._transport, definition)
            except (KubernetesError, CredentialInvalid) as error:
                log.debug("kubernetes.definition_not_read", definition=name, error=error.message)

    def _found(self, context: Context) -> dict[str, str]:
        """The present troubles, in words by code."""
        skew = self._transport.now() - context.clock.now()
        older = [f"{name} lacks {listed(fields, 3)}" for name, fields in self._older.items() if fields]
        missing = {str(each.source.resource) for each in self.informers if each.doubt and not each.denied}
        found = {
            "unreachable": self._error,
            "identity": self._pin.trouble if self._pin is not None else "",
            "denied": listed([str(each) for each in self._transport.denials.current()], MOST_DENIALS),
            "older": "; ".join(older),
            "missing": ", ".join(sorted(missing)),
            "clock-skew": _skewed(skew) if abs(skew) > SKEWED_SECONDS else "",
        }
        return {code: text for code, text in found.items() if text}


def _skewed(seconds: float) -> str:
    return f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"


# What a farm is told of the cluster that it works for.


@dataclass(slots=True)
class KubernetesSettings:
    """How a farm works in one cluster.

    Attributes:
        transport: its caller closes it after the farm has ended.
        name: stands for the cluster and the ``namespaces``; farms that share it share both.
        namespaces: none: all.
        jobs: the kinds of jobs that farms run there, by plural.
        gang: the flavour of the scheduler that admits members together; empty: none does.
        knative_namespace: where Knative's controllers run.
        init_image: of the containers that wait for a master; empty: there are none.
        resync: in seconds.
        contact: the farm's, for all its kinds of work there.
    """

    transport: KubernetesTransport
    name: str = "default"
    namespaces: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ("farmjobs",)
    gang: str = ""
    knative_namespace: str = KNATIVE_NAMESPACE
    init_image: str = INIT_IMAGE
    resync: float = RESYNC_SECONDS

    contact: Contact = field(init=False)

    def __post_init__(self) -> None:
        report = ClusterReport(namespaces=sorted(self.namespaces), knative_namespace=self.knative_namespace)
        self.contact = Contact(self.transport, self.name, report)


@asynccontextmanager
async def opened(
    section: KubernetesSection, env: Mapping[str, str], clock: Clock, rng: Rng, metrics: Recorder
) -> AsyncIterator[KubernetesSettings]:
    """The settings with an open transport.

    Raises:
        InputInvalid: a kubeconfig is not usable.
    """
    where = access(env, clock, kubeconfig=section.kubeconfig, context=section.context)
    async with KubernetesTransport(where, clock=clock, rng=rng, metrics=metrics) as transport:
        yield KubernetesSettings(
            transport,
            section.name,
            tuple(section.namespaces),
            tuple(section.jobs),
            section.gang,
            section.knative_namespace,
            section.init_image,
            section.resync,
        )
