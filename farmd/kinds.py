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

    A path has the form ``module:attribute``; an empty one means that the kind has no such part.

    Attributes:
        family: the family of its records, and the name under which farms claim its items.
        runs: the path of the class that runs it in a farm (``farmd.work.kind.Kind``).
        one, many: the words for one item and for several.
        label: the word for one item in tables; empty: ``one``.
        noun: the word that people type before a name, as in ``rc/hello``; empty: no command names its items.
        aliases: other words for the noun.
        asked: the path of its ``farmd.commands.noun.Noun``, which holds the commands on its records.
        title: the line about its commands in the help of ``farmctl``.
        group: the path of its group of commands, if it has others than those of every noun.
        owns_pods: whether its items own pods, and ``per_node`` whether one on each eligible node.
        main: whether it is the kind that is meant where a person names none. Its items are listed without a
            noun, and ``farmctl top`` counts them even if there are none.
        selectable: whether farms may choose among its items by labels; other items belong to all farms.
        guarded: whether doubt freezes it (R18), and ``health_matters`` whether mass ill health is such doubt.
        gradual: the family of the kind that brings a new manifest to its items step by step; empty: the
            worker replaces pods in place.
        first: the command with which people make one where there is none, for the page.
        begins: the path of the function that begins an item of a kind which others name as ``gradual``.
        supersedes: the path of the function that puts another version in place of the one that such an item
            brings.
        bundled: the path of its ``farmd.commands.bundled.Bundled``, by which bundles hold its items.
        unbundled: the hint for people who put such an item into a bundle, if bundles hold none.
        exported: the path of its ``farmd.commands.bundled.Exported``, which writes its items to files, if
            bundles hold none.
        listed: the path of the class of its list on the page, if it has no ``asked``.
        ended: the path of the function that waits for the end of an item, if items end by themselves.
        features: what each farm of this version knows of this kind; records may need it of their farm (R11).
        names: the trees whose keys end in the names of its items, for completion; empty: ``names/<family>``.
        wiped: the key of the incident that its tree lost its sentinel, if it has a key of its own (p2).
        unclaimed: what the doctor says where no farm claims the kind; empty: a text that fits every kind.
        outside: the section of the configuration that turns it on, if its items lie outside of Consul.
        examined: the path of the function that finds faults of items outside of Consul
            (``farmd.overview.incidents``).
        shown: the command that tells more of an item that has no noun, without the item's name.
        among: the family among whose records are its items, if it has none of its own, and ``waits`` the path
            of the function that says of such a record whether it is one.
        opens: the path of a context manager over the section of the configuration that has the family's
            name; a farm keeps it open for as long as it runs, and the kind gets its value.
        besides: the path of the function that makes further facts and tables of an item (``farmd.tables``).
        metrics: the path of its own rows of the table of metrics.
        starts: the path of the function that lists the manifests which a change of an item lets start, if
            the change writes no owner of pods.
        acts: what operators do to an item on the page, beside what its ``Noun`` can: words, and the paths of
            their functions.
        author: the path of the function that tells who said last what the parts of an item are
            (``farmd.commands.parts``).
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
    per_node: bool = False
    main: bool = False
    selectable: bool = False
    guarded: bool = False
    health_matters: bool = True
    gradual: str = ""
    first: str = ""
    begins: str = ""
    supersedes: str = ""
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
    among: str = ""
    waits: str = ""
    opens: str = ""
    besides: str = ""
    metrics: str = ""
    unbundled: str = ""
    starts: str = ""
    author: str = ""
    acts: tuple[tuple[str, str], ...] = ()


KINDS: dict[str, KindOfWork] = {
    kind.family: kind
    for kind in (
        KindOfWork(
            family="rcs",
            runs="farmd.replication.kind:Replication",
            first="farmctl rc create -f FILE",
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
            acts=(("scale", "farmd.replication.commands:set_replicas"),),
            features=("numbered.1", "pod-affinity.1", "one-shot.1", "artifacts.1"),
            wiped="no_rcs_found",
        ),
        KindOfWork(
            family="rollouts",
            runs="farmd.rollout.kind:Rollouts",
            first="farmctl rc update -f FILE",
            one="rollout",
            many="rollouts",
            noun="rollout",
            asked="farmd.rollout.noun:ROLLOUT",
            begins="farmd.rollout.creation:begin",
            supersedes="farmd.rollout.superseding:supersede",
            group="farmd.cli.rollout:rollout",
            title="Rollouts: replace a controller's version in stages, or revert it.",
            ended="farmd.rollout.commands:end",
            opens="farmd.rollout.gates:opened",
            metrics="farmd.rollout.metrics:METRICS",
            unbundled="no rollout: write rollout: with its policy into the rc",
            features=("rollouts.1", "rollouts.2", "rollouts.3"),
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="deployments",
            runs="farmd.deploy.kind:Deployments",
            first="farmctl deploy -f FILE",
            one="deployment",
            many="deployments",
            noun="deployment",
            asked="farmd.deploy.noun:DEPLOYMENT",
            group="farmd.cli.deployment:deployment",
            title="Deployments: update services from a file, or roll them back.",
            ended="farmd.deploy.commands:end",
            besides="farmd.tables.deployments:besides",
            starts="farmd.deploy.goals:starts",
            metrics="farmd.deploy.metrics:METRICS",
            unbundled="no deployment: apply makes one for each service that changes",
            features=("deploy.1", "deploy.catalog"),
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="nodes",
            runs="farmd.nodes.kind:Nodes",
            first="farmd agent",
            bundled="farmd.nodes.bundled:BUNDLED",
            one="node",
            many="nodes",
            noun="node",
            group="farmd.cli.node:node",
            title="Nodes: list, label, cordon, drain.",
            listed="farmd.web.item_lists:NodeList",
            acts=tuple(
                (word, f"farmd.nodes.commands:{word}") for word in ("cordon", "uncordon", "drain", "undrain")
            ),
            guarded=True,
            health_matters=False,  # that a node is lost has nothing to do with the health of pods elsewhere
            names=("nodes", "agents"),
        ),
        KindOfWork(
            family="daemonsets",
            runs="farmd.daemonset.kind:DaemonSets",
            first="farmctl daemonset create -f FILE",
            bundled="farmd.daemonset.bundled:BUNDLED",
            one="daemon set",
            many="daemon sets",
            noun="daemonset",
            aliases=("ds",),
            asked="farmd.daemonset.commands:DAEMON_SET",
            title="Daemon sets: one pod on every eligible node.",
            owns_pods=True,
            per_node=True,
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="jobs",
            runs="farmd.jobs.kind:Jobs",
            first="farmctl job run -f FILE",
            bundled="farmd.jobs.bundled:BUNDLED",
            one="job",
            many="jobs",
            noun="job",
            asked="farmd.jobs.commands:JOB",
            group="farmd.cli.job:job",
            title="Jobs: run members to completion, in arrays or gangs, with retries.",
            acts=tuple((word, f"farmd.jobs.commands:{word}") for word in ("stop", "resume")),
            owns_pods=True,
            ended="farmd.jobs.waiting:end",
            besides="farmd.tables.jobs:besides",
            metrics="farmd.jobs.metrics:METRICS",
            features=("jobs.1",),
            selectable=True,
            guarded=True,
        ),
        KindOfWork(
            family="schedules",
            runs="farmd.schedules.kind:Schedules",
            first="farmctl schedule create -f FILE",
            bundled="farmd.schedules.bundled:BUNDLED",
            one="schedule",
            many="schedules",
            noun="schedule",
            asked="farmd.schedules.commands:SCHEDULE",
            group="farmd.cli.schedule:schedule",
            title="Schedules: run a job once at each of their times.",
            besides="farmd.tables.schedules:besides",
            metrics="farmd.schedules.metrics:METRICS",
            selectable=True,
            guarded=True,
            health_matters=False,  # a job that is made removes nothing
        ),
        KindOfWork(
            family="apps",
            runs="farmd.apps.kind:Apps",
            first="farmctl apply -f FILE --app NAME",
            exported="farmd.apps.bundle:EXPORTED",
            one="app",
            many="apps",
            noun="app",
            group="farmd.cli.app:app",
            title="Apps: bundles of objects, their revisions and states.",
            names=("apps",),
            metrics="farmd.apps.metrics:METRICS",
            listed="farmd.web.apps:AppList",
            author="farmd.apps.revision:latest",
            selectable=True,
            guarded=True,
            health_matters=False,  # each wave looks at the health of its own objects
        ),
        KindOfWork(
            family="kubejobs",
            runs="farmd.kubernetes.jobs.kind:KubeJobs",
            one="job in Kubernetes",
            many="jobs in Kubernetes",
            guarded=True,
            health_matters=False,  # of pods on nodes; it says nothing of those in Kubernetes
            outside="kubernetes",
        ),
        KindOfWork(
            family="progressive",
            runs="farmd.kubernetes.knative.kind:Progressive",
            examined="farmd.kubernetes.knative.faults:examine",
            shown="farmctl rollout explain",
            one="rollout of a Knative Service",
            many="rollouts of Knative Services",
            selectable=True,
            guarded=True,
            health_matters=False,  # of pods on nodes; it says nothing of those in Kubernetes
            outside="kubernetes",
        ),
        KindOfWork(
            family="catalog",
            runs="farmd.catalog.kind:Catalog",
            one="service in Consul's catalogue",
            many="services in Consul's catalogue",
            among="services",
            waits="farmd.catalog.asked:asks",
            shown="farmctl service describe",
            metrics="farmd.catalog.metrics:METRICS",
        ),
        KindOfWork(
            family="housekeeping",
            runs="farmd.housekeeping.kind:Housekeeping",
            one="chore",
            many="chores",
            metrics="farmd.housekeeping.report:METRICS",
            unclaimed="no farm does housekeeping: manifests and the audit log grow without limit",
        ),
    )
}

# Nouns of records that are nobody's work by themselves.
OTHER_NOUNS = {"pods": "pod", "services": "service"}
OTHERS_FIRST = {"services": "farmctl service create NAME --port PORT rc/NAME"}
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


def selectable(family: str) -> bool:
    """Whether farms may choose among the items of a kind by labels."""
    kind = KINDS.get(family)
    return kind is not None and kind.selectable


def noun(family: str) -> str:
    """What people type for a record of a family, as in ``rc/hello``; the family itself if it has no noun."""
    kind = KINDS.get(family)
    return (kind.noun if kind is not None else OTHER_NOUNS.get(family, "")) or family


# The runbooks of farms' own alerts, by the beginning of an alert's name; the first that fits.
RUNBOOKS = (
    ("FarmdFrozen", "FarmdFrozen"),
    ("FarmdNodeLost", "FarmdAgentDown"),
    ("FarmdRcCrashes", "FarmdCrashLoop"),
    ("FarmdDaemonsetCrashes", "FarmdCrashLoop"),
    ("FarmdRolloutWaits", "FarmdRolloutWaits"),
    ("FarmdRollout", "FarmdRolloutHalted"),
    ("FarmdDeployment", "FarmdDeploymentHalted"),
    ("FarmdApp", "FarmdAppFailed"),
    ("FarmdJob", "FarmdJobWaits"),
    ("FarmdScheduleFailing", "FarmdScheduleFailing"),
    ("FarmdScheduleMissed", "FarmdScheduleMissed"),
    ("FarmdScheduleOverrun", "FarmdScheduleOverrun"),
    ("FarmdKubernetes", "FarmdKubernetesSilent"),
)


def title(family: str, name: str) -> str:
    """An item as people write it: ``rc/hello``."""
    return f"{noun(family)}/{name}"


def first(family: str) -> str:
    """The command with which people make the first item; empty: none."""
    return KINDS[family].first if family in KINDS else OTHERS_FIRST.get(family, "")


def path(family: str, name: str) -> str:
    """Where the page of a farm shows an item; empty: nowhere."""
    kind = KINDS[family]
    return f"/{kind.many.replace(' ', '')}/{name}" if kind.asked or kind.listed else ""


def runbook(alert: str) -> str:
    """The runbook of a farm's own alert by its name (``alerting.alert.Alert.name``)."""
    return next((runbook for begin, runbook in RUNBOOKS if alert.startswith(begin)), "FarmdBlocked")


def listed(family: str, name: str) -> str:
    """An item where those of all kinds are listed: the main kind's by name alone."""
    return name if KINDS[family].main else title(family, name)


def family_of(word: str) -> str:
    """The family that a noun or an alias means; any other word itself."""
    for kind in KINDS.values() if word else ():
        if word == kind.noun or word in kind.aliases:
            return kind.family
    return next((family for family, noun in OTHER_NOUNS.items() if noun == word), word)
