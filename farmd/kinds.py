"""The registry of the kinds of work: one entry each, asked by everything that is not about one kind alone.

Nothing of a kind is imported here: what an entry names as ``module:attribute`` is imported when it is
needed, so that ``farmctl`` starts fast and every layer may ask. What a kind's records are is in
``store.families``, under the same name.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfWork:
    """One kind of work.

    Attributes:
        family: the family of its records, and the name under which farms claim it.
        runs: the class that runs it in a farm.
        one, many: what people call one of its items, and several.
        label: what tables call one; ``one`` where it is empty.
        noun: what people type for it, as in ``rc/hello``; empty: nothing can be asked about one item.
        aliases: other words for the noun.
        asked: its ``farmd.commands.noun.Noun``: what people may ask of its records, where they name them.
        title: the line that help shows of its commands in ``farmctl``.
        group: the group of these commands, where it has others than those that every noun has.
        owns_pods: whether its items own pods.
        main: what people mean where they name no kind: its items' names need no noun before them, it is
            shown where there are none, and every farm guards it.
        selectable: whether farms may choose among its items by labels; other items belong to all farms.
        guarded: whether doubt freezes it (R18), and ``health_matters`` whether mass ill health is such doubt.
        gradual: the kind that brings a new manifest to its items step by step; empty: it comes at once.
        begins: what begins an item of a kind that does so.
        bundled: how bundles hold its items (``farmd.commands.bundled``); empty: they hold none.
        listed: its list on the page, where it has no ``asked``.
        exported: how its items are written as files, where bundles hold none of them (``Exported``).
        ended: what waits for the end of one, where an item is something that ends by itself.
        features: what farms of this version know of this kind, and records may need of their owner (R11).
        names: trees whose keys end in its items' names, for completion; for a family of named records none.
        wiped: the incident that people hear of when its tree lost its sentinel, where it has one of its own.
        outside: the section of the configuration that turns it on, where its items lie outside of Consul.
        examined: what finds faults of such items where they lie (``farmd.overview.faults``).
        shown: the command that shows more of such an item, by its name.
        opens: what a farm opens for it, for as long as it runs: a context manager over the section of the
            configuration that has the family's name.
        besides: what is told of one besides its status, as facts and tables (``farmd.tables``).
        metrics: its rows of the table of metrics; empty: it has only those that all kinds share.
        unbundled: what a bundle holds in place of such items, where it holds none.
        starts: what a mutation of it lets start, where that is not said by the owners of pods that it writes.
        author: what tells who said last what the parts of one are (``farmd.commands.parts``).
        unclaimed: what it means that no farm claims it; empty: that its items are left alone.
    """

    family: str
    runs: str
    one: str
    many: str
    label: str = ""
    noun: str = ""
    aliases: tuple[str, ...] = ()
    asked: str = ""
    title: str = ""
    group: str = ""
    owns_pods: bool = False
    main: bool = False
    selectable: bool = False
    guarded: bool = False
    health_matters: bool = True
    gradual: str = ""
    begins: str = ""
    bundled: str = ""
    listed: str = ""
    exported: str = ""
    ended: str = ""
    features: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    wiped: str = ""
    unclaimed: str = ""
    outside: str = ""
    examined: str = ""
    shown: str = ""
    opens: str = ""
    besides: str = ""
    metrics: str = ""
    unbundled: str = ""
    starts: str = ""
    author: str = ""


KINDS: dict[str, KindOfWork] = {
    kind.family: kind
    for kind in (
        KindOfWork(
            family="rcs",
            runs="farmd.replication.kind:Replication",
            bundled="farmd.replication.bundled:BUNDLED",
            one="controller",
            many="controllers",
            label="rc",
            noun="rc",
            asked="farmd.replication.commands:RC",
            group="farmd.cli.rc:rc",
            title="Replication controllers: keep N copies of a pod.",
            owns_pods=True,
            main=True,
            selectable=True,
            guarded=True,
            gradual="rollouts",
            features=("numbered.1",),
            wiped="no_rcs_found",
        ),
        KindOfWork(
            family="rollouts",
            runs="farmd.rollout.kind:Rollouts",
            one="rollout",
            many="rollouts",
            noun="rollout",
            asked="farmd.rollout.noun:ROLLOUT",
            begins="farmd.rollout.creation:begin",
            group="farmd.cli.rollout:rollout",
            title="Rollouts: bring a new version of a controller, within a floor, and back.",
            ended="farmd.rollout.waiting:end",
            opens="farmd.rollout.gates:opened",
            metrics="farmd.rollout.metrics:METRICS",
            unbundled="no rollout: write rollout: with its policy into the rc",
            features=("rollouts.1", "rollouts.2"),
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="deployments",
            runs="farmd.deploy.kind:Deployments",
            one="deployment",
            many="deployments",
            noun="deployment",
            asked="farmd.deploy.noun:DEPLOYMENT",
            group="farmd.cli.deployment:deployment",
            title="Deployments: bring services to what a file says, and back.",
            ended="farmd.deploy.waiting:end",
            besides="farmd.tables.deployments:besides",
            starts="farmd.deploy.signing:starts",
            metrics="farmd.deploy.metrics:METRICS",
            unbundled="no deployment: apply makes one for each service that changes",
            features=("deploy.1",),
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="nodes",
            runs="farmd.nodes.kind:Nodes",
            bundled="farmd.nodes.bundled:BUNDLED",
            one="node",
            many="nodes",
            noun="node",
            group="farmd.cli.node:node",
            title="Nodes: list, label, cordon, drain.",
            listed="farmd.web.nodes:NodeList",
            guarded=True,
            health_matters=False,  # that a node is lost has nothing to do with the health of pods elsewhere
            names=("nodes", "agents"),
        ),
        KindOfWork(
            family="daemonsets",
            runs="farmd.daemonset.kind:DaemonSets",
            bundled="farmd.daemonset.bundled:BUNDLED",
            one="daemon set",
            many="daemon sets",
            noun="daemonset",
            aliases=("ds",),
            asked="farmd.daemonset.commands:DAEMON_SET",
            title="Daemon sets: one pod on every eligible node.",
            owns_pods=True,
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="jobs",
            runs="farmd.jobs.kind:Jobs",
            bundled="farmd.jobs.bundled:BUNDLED",
            one="job",
            many="jobs",
            noun="job",
            asked="farmd.jobs.commands:JOB",
            group="farmd.cli.job:job",
            title="Jobs: run members to their end, in arrays or gangs, with retries.",
            owns_pods=True,
            ended="farmd.jobs.waiting:end",
            besides="farmd.tables.jobs:besides",
            metrics="farmd.jobs.metrics:METRICS",
            features=("jobs.1",),
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="apps",
            runs="farmd.dispatch.kind:Apps",
            exported="farmd.dispatch.exporting:EXPORTED",
            one="app",
            many="apps",
            noun="app",
            group="farmd.cli.app:app",
            title="Apps: bundles of objects, their revisions, and how they stand.",
            names=("apps",),
            metrics="farmd.dispatch.metrics:METRICS",
            listed="farmd.web.apps:AppList",
            author="farmd.dispatch.authors:latest",
            selectable=True,
            guarded=True,
            health_matters=False,  # each wave looks at the health of its own objects
        ),
        KindOfWork(
            family="kubejobs",
            runs="farmd.kubernetes.kind:KubeJobs",
            one="job in Kubernetes",
            many="jobs in Kubernetes",
            guarded=True,
            health_matters=False,  # of pods on nodes; it says nothing of those in Kubernetes
            outside="kubernetes",
        ),
        KindOfWork(
            family="progressive",
            runs="farmd.kubernetes.progressive.kind:Progressive",
            examined="farmd.kubernetes.progressive.people.faults:examine",
            shown="farmctl rollout explain",
            one="rollout of a Knative Service",
            many="rollouts of Knative Services",
            selectable=True,
            guarded=True,
            health_matters=False,  # of pods on nodes; it says nothing of those in Kubernetes
            outside="kubernetes",
        ),
        KindOfWork(
            family="housekeeping",
            runs="farmd.housekeeping.kind:Housekeeping",
            one="chore",
            many="chores",
            metrics="farmd.housekeeping.metrics:METRICS",
            unclaimed="no farm does house-keeping: manifests and the audit log grow for ever",
        ),
    )
}

# Nouns of records that are nobody's work by themselves.
OTHER_NOUNS = {"pods": "pod", "services": "service"}
_OTHERS_BUNDLED = {"service": "farmd.deploy.bundled:BUNDLED"}
_OTHERS_UNBUNDLED = {"pod": "no pod: write its owner, such as an rc"}


# How people change a record of such a family, whose parts they must leave alone.
_WAYS = {
    "services": "farmctl service scale|rollback|delete {name}, or farmctl deploy",
    "apps": "farmctl apply --app {name} with other files, or farmctl app release",
}


def ways(family: str, name: str) -> str:
    """The commands that change what a part belongs to; empty: this version knows none."""
    return _WAYS.get(family, "").format(name=name)


def load(path: str) -> Any:
    """Import what an entry names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def bundled() -> dict[str, str]:
    """What bundles may hold, by noun, with the path of how they do (``farmd.commands.bundled``)."""
    return {kind.noun: kind.bundled for kind in KINDS.values() if kind.bundled} | _OTHERS_BUNDLED


def exported() -> dict[str, str]:
    """What can be written as files, by noun, with the path of how it is (``farmd.commands.bundled``)."""
    return bundled() | {kind.noun: kind.exported for kind in KINDS.values() if kind.exported}


def unbundled() -> dict[str, str]:
    """What bundles hold in place of other nouns, by noun."""
    return {kind.noun: kind.unbundled for kind in KINDS.values() if kind.unbundled} | _OTHERS_UNBUNDLED


def features() -> tuple[str, ...]:
    """What every farm of this version knows, whatever kinds it runs (R11)."""
    return tuple(feature for kind in KINDS.values() for feature in kind.features)


def freed(record: Any) -> dict[str, Any]:
    """The fields of an owner of pods from the moment on at which nothing manages it any more."""
    family = record.managed_by.partition("/")[0]
    needed = KINDS[family].features if family in KINDS else ()
    needs = [need for need in record.needs if need not in needed]
    return {"managed_by": "", "taken": False, "hands": record.hands + record.taken, "needs": needs}


def selectable(family: str) -> bool:
    """Whether farms may choose among the items of a kind by labels."""
    kind = KINDS.get(family)
    return kind is not None and kind.selectable


def noun(family: str) -> str:
    """What people type for a record of a family, as in ``rc/hello``; the family itself if it has no noun."""
    kind = KINDS.get(family)
    return (kind.noun if kind is not None else OTHER_NOUNS.get(family, "")) or family


def title(family: str, name: str) -> str:
    """An item as people write it: ``rc/hello``."""
    return f"{noun(family)}/{name}"


def listed(family: str, name: str) -> str:
    """An item where those of all kinds are listed: the main kind's by name alone."""
    return name if KINDS[family].main else title(family, name)


def family_of(word: str) -> str:
    """The family that a noun or an alias means; any other word itself."""
    for kind in KINDS.values() if word else ():
        if word == kind.noun or word in kind.aliases:
            return kind.family
    return next((family for family, noun in OTHER_NOUNS.items() if noun == word), word)
