"""Checks farms and their versions, agents, clocks, and the Kubernetes clusters that farms work in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from farmd.kinds import KINDS
from store.audit import utc_hour
from store.families import FAMILIES
from store.farms import ClusterReport, Member
from store.features import root_by_farm
from store.nodes import Agent
from store.words import count_of, lasting, listed

SKEW_SECONDS = 60.0
# A farm that takes longer to read everything is reported.
START_SECONDS = 60.0


NO_NODES = "none: pods cannot be placed until an agent starts (farmd agent) or farmctl node register NAME"


def _rooted(survey: Survey) -> dict[str, str]:
    """The nodes on which a farm's token means root, by the reason."""
    found: dict[str, list[str]] = {}
    for _, agent in survey.decoded("agents", Agent):
        if why := root_by_farm(agent.features):
            found.setdefault(why, []).append(agent.node)
    told = [f"{listed(sorted(nodes), 5)} ({why})" for why, nodes in sorted(found.items())]
    return {"a farm's token is root on": "; ".join(told)} if told else {}


def facts(survey: Survey) -> dict[str, str]:
    """The farms with their versions, and the number of nodes."""
    members = sorted((member for _, member in survey.decoded("farms", Member)), key=lambda m: m.id)
    nodes = _nodes(survey)
    present = len(survey.ids("agents"))
    return {
        "farms": ", ".join(f"{member.id} ({member.version})" for member in members) or "none",
        "nodes": f"{len(nodes)}, {present} with an agent" if nodes else NO_NODES,
        **_rooted(survey),
    }


def check(survey: Survey) -> list[Finding]:
    """Check farms, nodes and clocks."""
    if survey.cluster is None:
        return []
    checks = (_farms, _versions, _absent, _denied, _silent, _left, _clocks)
    return [finding for each in checks for finding in each(survey)]


def _farms(survey: Survey) -> Iterator[Finding]:
    members = [member for _, member in survey.decoded("farms", Member)]
    if not members:
        yield Finding(
            "no-farm",
            "farms",
            "no farm is alive: nothing repairs, moves or adds pods; what runs keeps running",
            "start one anywhere: farmd run",
        )
        return
    for member in members:
        if member.starting and survey.now - member.since > START_SECONDS:
            yield Finding(
                "farm-starting",
                f"farms/{member.id}",
                f"it started {lasting(survey.now - member.since)} ago and has not read everything yet: it"
                " takes no items",
                "its log names what it could not read (farm.not_ready); other findings may show why",
            )
    for kind in KINDS.values():
        name = kind.family
        # Items without records always exist.
        waits = any(survey.records(name)) if name in survey.trees else not kind.outside
        if kind.waits and (record := FAMILIES[kind.among].record) is not None:
            waits = any(kind.waits()(found) for _, found in survey.decoded(kind.among, record))
        if waits and not any(name in member.kinds for member in members):
            what = kind.unclaimed or f"no farm that is alive claims {kind.many}"
            yield Finding("kind-unclaimed", name, what, f"add {name} to farm.kinds")


def _versions(survey: Survey) -> Iterator[Finding]:
    farms = Counter(member.version for _, member in survey.decoded("farms", Member))
    agents = Counter(agent.version for _, agent in survey.decoded("agents", Agent))
    if len({*farms, *agents}) > 1:
        told = (
            f"{count_of(number, word)} of {version}"
            for word, versions in (("farm", farms), ("agent", agents))
            for version, number in sorted(versions.items())
        )
        yield Finding(
            "mixed-versions",
            "farms",
            f"processes of different versions are alive: {', '.join(told)}",
            "finish the upgrade: farmctl farm list and farmctl node list -o wide show the version of each",
        )


def _nodes(survey: Survey) -> set[str]:
    below = (key[len(survey.keys.tree("intent")) :] for key in survey.trees["intent"])
    registered = {rest.split("/")[0] for rest in below if rest.count("/") == 1}
    return {*survey.ids("nodes"), *survey.ids("agents"), *registered}


def _absent(survey: Survey) -> Iterator[Finding]:
    pods: dict[str, int] = {}
    for entry in survey.well_formed("intent"):
        node, _ = survey.keys.intent_parts(entry.key)
        pods[node] = pods.get(node, 0) + 1
    for node in sorted(_nodes(survey) - survey.ids("agents")):
        yield Finding(
            "node-absent",
            f"nodes/{node}",
            f"its agent is absent: the state of its {count_of(pods.get(node, 0), 'pod')} is unknown",
            f"start farmd-agent there; if the node is gone for good: farmctl node forget {node}",
        )


def _denied(survey: Survey) -> Iterator[Finding]:
    said = [(f"farms/{member.id}", member.denied) for _, member in survey.decoded("farms", Member)]
    said += [(f"nodes/{agent.node}", agent.denied) for _, agent in survey.decoded("agents", Agent)]
    for name, denied in said:
        if denied:
            yield Finding(
                "token-denied",
                name,
                f"it is present but cannot do its work. {denied}",
                "give its token those rules, or give it another token: it tries again every 5 s",
            )


def _silent(survey: Survey) -> Iterator[Finding]:
    for _, agent in survey.decoded("agents", Agent):
        for runtime, why in sorted(agent.doubts.items()):
            yield Finding(
                "runtime-silent",
                f"nodes/{agent.node}",
                f"its runtime {runtime} cannot report what runs: {why}; its pods are left as they are",
                f"find out on {agent.node} why it does not answer; the agent tries again every 2 s",
            )


def _left(survey: Survey) -> Iterator[Finding]:
    for _, agent in survey.decoded("agents", Agent):
        for path, why in sorted(agent.left.items()):
            yield Finding(
                "not-removed",
                f"nodes/{agent.node}",
                f"its agent cannot remove {path}: {why}; it takes up space there until it is gone",
                f"on {agent.node}, stop what uses it, unmount or unlock it (umount, chattr -R -i); the agent"
                " tries again every minute",
            )


def _clocks(survey: Survey) -> Iterator[Finding]:
    since = [(entry, member.since) for entry, member in survey.decoded("farms", Member)]
    since += [(entry, agent.since) for entry, agent in survey.decoded("agents", Agent)]
    for entry, at in since:
        if at > survey.now + SKEW_SECONDS:
            yield Finding(
                "clock-skew",
                survey.short(entry.key),
                f"it started {at - survey.now:.0f} s in the future of this machine",
                "correct the clocks: the audit log is sorted into hours by them",
            )
    newest = max(survey.audit_hours, default="")
    if newest[:4].isdigit() and newest > utc_hour(survey.now + SKEW_SECONDS):
        yield Finding(
            "clock-skew",
            f"audit/{newest}",
            "an audit record has a time in the future of this machine",
            "correct the clocks: farmctl audit list names the actor",
        )


# The clusters of Kubernetes that farms work in: their troubles, and names that mean several clusters.


# The fix of each trouble; the trouble itself says what was found.
_FIXES = {
    "unreachable": "farmctl kubernetes status on that machine, with the farm's kubeconfig, says whether the"
    " address, the network, a certificate or the credential is to blame; the farm continues by itself",
    "denied": "farmctl kubernetes install applies the role; bind it to the farm's user with --subject",
    "identity": "fix [kubernetes] kubeconfig of that farm; or, if the cluster was replaced on purpose:"
    " farmctl kubernetes accept --name {name}",
    "missing": "farmctl kubernetes install defines farmd's own; remove kinds without an operator from"
    " [kubernetes] jobs",
    "older": "farmctl kubernetes install installs the definitions of this version",
    "clock-skew": "set the clock of the farm's machine, or of the API server's",
}
_UPGRADE = "upgrade farmctl, and run farmctl doctor again"


def check_clusters(survey: Survey) -> list[Finding]:
    """The troubles of each farm, and names that do not mean one thing to all farms."""
    reports: dict[str, dict[str, ClusterReport]] = {}
    for _, member in survey.decoded("farms", Member):
        for name, report in member.clusters.items():
            reports.setdefault(name, {})[member.id] = report
    return [
        finding
        for name, farms in sorted(reports.items())
        for finding in (*_troubles(name, farms), *_differing(name, farms))
    ]


def _troubles(name: str, farms: dict[str, ClusterReport]) -> Iterator[Finding]:
    for farm, report in sorted(farms.items()):
        for code, text in sorted(report.troubles.items()):
            yield Finding(
                f"kubernetes-{code}",
                f"farms/{farm}",
                f"Kubernetes {name!r}: {text}",
                _FIXES.get(code, _UPGRADE).format(name=name),
            )


def _differing(name: str, farms: dict[str, ClusterReport]) -> Iterator[Finding]:
    uids = {farm: report.uid for farm, report in farms.items() if report.uid}
    namespaces = {farm: ", ".join(report.namespaces) or "all" for farm, report in farms.items()}
    knative = {farm: report.knative_namespace for farm, report in farms.items() if report.knative_namespace}
    for what, values in (
        ("clusters (uids of kube-system)", uids),
        ("namespaces", namespaces),
        ("namespaces of Knative", knative),
    ):
        if len(set(values.values())) > 1:
            told = listed([f"{farm}: {value}" for farm, value in sorted(values.items())])
            yield Finding(
                "kubernetes-differs",
                f"meta/kubernetes/{name}",
                f"farms use different {what} under the name {name!r}: {told}",
                "give each its own [kubernetes] name, or configure the farms alike",
            )
