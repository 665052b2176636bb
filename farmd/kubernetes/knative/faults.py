"""What is wrong with Knative Services and their rollouts, for the doctor and for explanations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from farmd.commands.mutation import Call
from farmd.farm.plan import Item
from farmd.kubernetes import install
from farmd.kubernetes.commands import ClusterFarm, knative_namespace, workers
from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.knative import bounds, view
from farmd.kubernetes.knative.facts import Snapshot, owner
from farmd.kubernetes.knative.objects import (
    ENABLED,
    MANAGER,
    ORCHESTRATORS,
    RELEASED,
    STAGE_AUTOSCALERS,
    ConfigMap,
    KnativeService,
    Orchestrator,
)
from farmd.kubernetes.knative.settings import DURATION, NETWORK, NO_DURATION, Settings
from farmd.kubernetes.knative.view import KIND, FoundService, Services
from farmd.kubernetes.objects import CRDS
from farmd.kubernetes.store import version_of
from farmd.kubernetes.transport import KubernetesTransport
from farmd.overview.incidents import Examined, Fault
from farmd.overview.owners import farms, holders, why_unowned
from store.farms import CLUSTERS, Member
from store.mistakes import shown
from store.words import count_of, listed

# Settings of Knative under which a stage cannot reach its goal, or takes more pods than it says: pure.

AUTOSCALER = "config-autoscaler"
_SERVING, _SCALING = "serving.knative.dev/", "autoscaling.knative.dev/"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "ns": 1e-9}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|ns|m|s)"
_LONGEST = 64
"""A duration is much shorter, and a text that people wrote may be a megabyte."""
_SHIFTS = "Knative moves traffic by itself, before the pods of a stage exist"
_MORE = "a new revision starts with that many pods, whatever its stage says"
_LONG = "the last pod of a shrinking revision stays longer than a stage may take"


class Defeat(NamedTuple):
    """A key with what was found, what is expected in its place, and why."""

    key: str
    found: str
    expected: str
    why: str


def seconds(text: str) -> float:
    """A duration as Knative writes it, such as ``1h30m``; 0 where it is none."""
    if len(text) > _LONGEST or re.fullmatch(f"({_PART})+", text) is None:
        return 0.0
    return sum(float(count) * _UNITS[unit] for count, unit in re.findall(_PART, text))


def of_cluster(
    autoscaler: Mapping[str, str], network: Mapping[str, str], longest: float
) -> Iterator[tuple[str, Defeat]]:
    """Of the ConfigMaps, each with its name; ``longest``: seconds that a stage may make no progress."""
    key = "enable-scale-to-zero"
    if (found := autoscaler.get(key, "true")).strip().lower() == "false":
        why = "the last pod of a shrinking revision is never removed, so the last stage never ends"
        yield AUTOSCALER, Defeat(key, found, "true", why)
    key = "min-scale"
    if _number(found := autoscaler.get(key, "0")) > 0:
        why = "revisions without an annotation keep this many pods, which no stage lowers"
        yield AUTOSCALER, Defeat(key, found, "0, and the annotation of that name on templates", why)
    yield from ((AUTOSCALER, each) for each in _alike(autoscaler, "", longest))
    if (found := network.get(DURATION, NO_DURATION)).strip() != NO_DURATION:
        yield NETWORK, Defeat(DURATION, found, NO_DURATION, _SHIFTS)


def of_service(service: KnativeService, longest: float) -> Iterator[Defeat]:
    """Of one service's own annotations."""
    yield from _alike(service.spec.template.metadata.annotations, _SCALING, longest)
    found = service.metadata.annotations.get(_SERVING + DURATION, NO_DURATION)
    if found.strip() != NO_DURATION:
        yield Defeat(_SERVING + DURATION, found, NO_DURATION, _SHIFTS)


def _alike(texts: Mapping[str, str], prefix: str, longest: float) -> Iterator[Defeat]:
    """What a ConfigMap and a template say by keys of the same name."""
    key = f"{prefix}initial-scale"
    if _number(found := texts.get(key, "1")) > 1:
        yield Defeat(key, found, "1", _MORE)
    key = f"{prefix}scale-to-zero-pod-retention-period"
    if seconds(found := texts.get(key, "0s")) >= longest:
        yield Defeat(key, found, f"less than {longest:g}s", _LONG)


def told(defeat: Defeat) -> str:
    """For people."""
    return f"{defeat.key}: found {shown(defeat.found)}, expected {defeat.expected}: {defeat.why}"


def _number(text: str) -> int:
    return int(text) if len(text) <= _LONGEST and text.strip().isdecimal() else 0


# What the doctor finds of Knative Services: parts that their rollouts lack, services that no farm owns,
# bounds of a stage that nobody takes back, and settings of Knative that defeat a stage.
#
# What a farm says of a rollout that stands still is a status in Consul, which the doctor reads without us.

# A service that was made a moment ago has this long to be claimed.
PATIENCE_SECONDS = 3.0
FACT = "Knative Services"
INSTALL = "farmctl kubernetes install --progressive"
_SETTINGS = ("rollout.knative.dev/", "rollout.farmd.io/")


async def examine(call: Call, transport: KubernetesTransport) -> Examined:
    """The faults of all services of the cluster behind ``transport``.

    Raises:
        StoreError: it does not answer, or this person may not read something.
    """
    there = await workers(call, transport)
    if not there and any(farm.clusters for farm in await farms(call.client, call.keys)):
        return Examined(facts={FACT: "not examined: no farm works in the kubeconfig's cluster"})
    namespace = knative_namespace(there)
    reader = Services(transport, call.clock, namespace)
    services = await _services(reader)
    if services is None:
        return Examined(facts={FACT: "Knative is not installed"})
    chosen = [each for each in services if each.enabled]
    facts = {FACT: f"{len(services)}, {len(chosen)} with the label {ENABLED}"}
    faults = [*_half(services)]
    missing, told = await _parts(transport), count_of(len(chosen), "service")
    faults += [_missing(name, state, told) for name, state in missing.items() if chosen]
    if "absent" in {
        missing.get(f"{CRDS.kind.lower()}/{each}") for each in (ORCHESTRATORS, STAGE_AUTOSCALERS)
    }:
        return Examined(faults, facts)
    faults += await _defeating(reader, namespace) if chosen else []
    records = await reader.of(Orchestrator).list()
    found = await reader.seen(services, records)
    faults += await _unowned(call, there, found, _abandoned(services, records))
    faults += [_orphan(each) for each in records if not owner(each)]
    for seen in found:
        faults += [*_own_settings(seen), *_of_nobody(seen)]
    return Examined(faults, facts)


async def _services(reader: Services) -> Sequence[KnativeService] | None:
    """All services; None: there is no Knative."""
    try:
        return await reader.of(KnativeService).list()
    except NotFound:
        return None


# -- opting in ----------------------------------------------------------------------------------
def _half(services: Sequence[KnativeService]) -> Iterator[Fault]:
    """Services with a part of what opts them in: another value of the label, or settings without it."""
    for each in services:
        meta, label = each.metadata, each.metadata.labels.get(ENABLED)
        template = each.spec.template.metadata
        notes = sorted(key for key in template.annotations if key.startswith(_SETTINGS))
        notes += sorted(
            f"label {key} on the template" for key in template.labels if key.startswith(_SETTINGS)
        )
        if label not in (None, "true", "false"):
            told = f"label {ENABLED}: found {shown(label)}, expected true or false"
        elif label is None and notes:
            told = f"{listed(notes, 2)} without the label {ENABLED}"
        else:
            continue
        name = f"{meta.namespace} {meta.name}"
        fix = f"kubectl label --overwrite ksvc -n {name} {ENABLED}=true; or remove the settings"
        yield Fault("ksvc-half-enabled", f"ksvc/{each.name}", f"{told}: no farm rolls it out", fix)


async def _parts(transport: KubernetesTransport) -> Mapping[str, str]:
    """What of the installation is not as it should be, by kind and name, without the role for jobs."""
    ours = [each["metadata"]["name"] for each in install.documents((), progressive=True)]
    jobs = {each["metadata"]["name"] for each in install.documents(())}
    found = await install.status(transport, (), progressive=True)
    return {
        f"{each.kind.lower()}/{each.name}": each.state
        for each in found
        if each.name in ours and each.name not in jobs and each.state not in ("established", "there")
    }


def _missing(name: str, state: str, enabled: str) -> Fault:
    told = f"found {state}, expected it as this version ships it: {enabled} with the label {ENABLED} need it"
    return Fault("ksvc-parts-missing", name, told, INSTALL)


# -- settings -----------------------------------------------------------------------------------
async def _defeating(reader: Services, namespace: str) -> list[Fault]:
    configs = reader.of(ConfigMap)
    read = [await configs.get(namespace, name) for name in (AUTOSCALER, NETWORK)]
    autoscaler, network = [each.data if each is not None else {} for each in read]
    longest = Settings().progress_deadline
    return [
        Fault(
            "knative-setting",
            f"configmap/{namespace}/{name}",
            told(each),
            f"kubectl edit configmap -n {namespace} {name}",
        )
        for name, each in of_cluster(autoscaler, network, longest)
    ]


def _own_settings(seen: FoundService) -> Iterator[Fault]:
    service = seen.knative.service
    if not service.enabled:
        return
    for each in of_service(service, seen.knative.settings.progress_deadline):
        fix = f"remove {each.key} from its file, or set it to what is expected"
        yield Fault("knative-setting", f"ksvc/{seen.name}", told(each), fix)


# -- owners -------------------------------------------------------------------------------------
def _abandoned(services: Sequence[KnativeService], records: Sequence[Orchestrator]) -> Mapping[str, str]:
    """Services that are gone or were made anew, and whose record is not released, by uid."""
    alive = {each.metadata.uid for each in services}
    return {
        owner(each): f"ksvc/{each.metadata.namespace}/{each.metadata.name}"
        for each in records
        if owner(each) not in ("", *alive) and RELEASED not in each.metadata.annotations
    }


def _orphan(record: Orchestrator) -> Fault:
    meta = record.metadata
    told = f"found no owner, expected the service {meta.name}: it was left as an orphan, or created by hand"
    fix = f"kubectl delete ro -n {meta.namespace} {meta.name}"
    return Fault("ksvc-record-orphan", f"ro/{meta.namespace}/{meta.name}", told, fix)


async def _unowned(
    call: Call, there: Sequence[ClusterFarm], found: Sequence[FoundService], abandoned: Mapping[str, str]
) -> list[Fault]:
    """Services that are work and that no farm has, now and a moment later."""
    work = {each.knative.service.metadata.uid: each for each in found if _is_work(each.knative)}
    free = (work.keys() | abandoned.keys()) - (await holders(call.client, call.keys, KIND)).keys()
    if free:
        await call.clock.sleep(PATIENCE_SECONDS)
        free -= (await holders(call.client, call.keys, KIND)).keys()
    alive = await farms(call.client, call.keys) if free else []
    rows = [_free(each, there, alive) for uid, each in work.items() if uid in free]
    for uid in sorted(abandoned.keys() & free):
        told = "it is gone, and its record waits for a farm to restore its bounds; no farm works on it"
        rows.append(Fault("ksvc-unowned", abandoned[uid], told, "start a farm that works in its namespace"))
    return rows


def _is_work(knative: Snapshot) -> bool:
    record = knative.orchestrator
    return knative.service.enabled or (record is not None and RELEASED not in record.metadata.annotations)


def _free(seen: FoundService, there: Sequence[ClusterFarm], alive: Sequence[Member]) -> Fault:
    fix = "start a farm with [kubernetes] whose farm.kinds has it, or fix those that are alive"
    row = view.row(seen)
    stands = f"; it is {row.phase}{f': {row.reason}' if row.reason else ''}"
    why = why_free(seen.knative.service, there, alive)
    return Fault("ksvc-unowned", f"ksvc/{seen.name}", f"no farm works on it: {why}{stands}", fix)


def why_free(service: KnativeService, there: Sequence[ClusterFarm], alive: Sequence[Member]) -> str:
    """Why no farm has a service: of all that are alive, and of those that work in its cluster."""
    meta = service.metadata
    near = [each for each in there if not each.report.namespaces or meta.namespace in each.report.namespaces]
    if there and not near:
        return f"no farm works in namespace {meta.namespace}: [kubernetes] namespaces"
    needs = tuple(sorted({f"{CLUSTERS}{each.cluster}" for each in near})[:1])
    item = Item(meta.uid, version_of(service), meta.labels, needs)
    return why_unowned(KIND, item, [each.farm for each in near] or alive)


# -- bounds -------------------------------------------------------------------------------------
def _of_nobody(seen: FoundService) -> Iterator[Fault]:
    """Bounds that farmd wrote on revisions of a service that is no work any more: nobody takes them back."""
    knative = seen.knative
    if _is_work(knative):
        return
    for name in sorted(knative.revisions):
        if told := _stale(knative, name):
            space, _, service = seen.name.partition("/")
            fix = (
                f"kubectl label ksvc -n {space} {service} {ENABLED}=true, and {ENABLED}- once its rollout is"
                " over; or annotate what people gave"
            )
            yield Fault("ksvc-bounds-of-nobody", f"ksvc/{seen.name}", told, fix)


def _stale(knative: Snapshot, name: str) -> str:
    """What is wrong with bounds of a revision that farmd wrote; empty: they are what people gave."""
    if not any(each.manager == MANAGER for each in bounds.entries(knative, name)):
        return ""
    stands = bounds.standing(knative, name)
    text = f"{name} has the bounds {bounds.written(stands)} of a stage"
    if knative.orchestrator is not None:
        final = bounds.final(knative, name)
        return "" if final == stands else f"{text}, but its own are {bounds.written(final)}"
    configuration = knative.configuration
    newest = configuration.status.latest_created_revision_name if configuration is not None else ""
    template = bounds.read_service_bounds(knative.service)
    if name not in knative.routed or (name == newest and template == stands):
        return ""
    return f"{text}, and no record has its own bounds"
