"""Checks what farms say of the clusters of Kubernetes that they work in: troubles, and disagreement."""

from __future__ import annotations

from collections.abc import Iterator

from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from store.farms import ClusterReport, Member
from store.words import listed

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


def check(survey: Survey) -> list[Finding]:
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
