"""The order in which the objects of one step are applied: what others live in or are made of comes first.

It is Helm's order of kinds; any other kind comes last. Removal goes the other way.
"""

from __future__ import annotations

from collections.abc import Sequence

from farmd.apps.facts import Act

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
