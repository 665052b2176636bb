"""Which records do not decode, and which manifests are referred to but not there."""

from __future__ import annotations

from typing import Any

from farmd.doctor.model import Finding
from farmd.doctor.repairs import way_out
from farmd.doctor.survey import Survey
from store import codec, families, rcs
from store.daemonsets import DaemonSet
from store.entry import Entry
from store.errors import RecordInvalid
from store.failsafe import Failsafe
from store.farms import Member
from store.intent import Intent
from store.named import decode_named
from store.nodes import Agent, Node, NodeStatus, Reserved
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Reality
from store.status import Status
from store.work import Work

KINDS: dict[str, type[Any]] = {
    "rcs": ReplicationController,
    "daemonsets": DaemonSet,
    "pods": Pod,
    "intent": Intent,
    "reality": Reality,
    "nodes": Node,
    "agents": Agent,
    "reserved": Reserved,
    "farms": Member,
    "failsafe": Failsafe,
    "work": Work,
    "names": str,
    "status": Status,
}
# What a kind of work tells people, where it is not what all others do.
STATUSES: dict[str, type[Any]] = {"nodes": NodeStatus}


def check(survey: Survey) -> list[Finding]:
    """Every record of the families that this version knows."""
    return [*_undecodable(survey), *_without_manifest(survey)]


def _undecodable(survey: Survey) -> list[Finding]:
    findings = []
    for family, kind in KINDS.items():
        for entry in survey.records(family):
            try:
                _check_key(survey, family, entry.key)
                _decode(survey, family, kind, entry)
            except RecordInvalid as error:
                fix, removal = way_out(survey, family, entry)
                name = survey.short(entry.key)
                fix = f"if a newer version wrote it, let that version correct it; else {fix}"
                findings.append(Finding("record-invalid", name, error.message, fix, removal))
    return findings


def _decode(survey: Survey, family: str, kind: type[Any], entry: Entry) -> None:
    if family == "rcs":
        rcs.decode(survey.keys, entry)
    elif family == "daemonsets":
        decode_named(DaemonSet, survey.keys, entry)
    elif family == "status":
        of = entry.key[len(survey.keys.tree(family)) :].partition("/")[0]
        codec.decode(STATUSES.get(of, kind), entry.value, entry.key)
    else:
        codec.decode(kind, entry.value, entry.key)


def _check_key(survey: Survey, family: str, key: str) -> None:
    if not families.well_formed(survey.keys, family, key):
        raise RecordInvalid(f"{key}: no record of {family} has such a key", key=key)


def _without_manifest(survey: Survey) -> list[Finding]:
    referring = [(entry, rc.manifest) for entry, rc in survey.decoded("rcs", ReplicationController)]
    referring += [(entry, daemonset.manifest) for entry, daemonset in survey.decoded("daemonsets", DaemonSet)]
    referring += [(entry, pod.manifest) for entry, pod in survey.decoded("pods", Pod)]
    referring += [(entry, intent.manifest) for entry, intent in survey.decoded("intent", Intent)]
    return [
        Finding(
            "manifest-missing",
            survey.short(entry.key),
            f"it refers to the manifest {sha[:12]}, which is not there: it cannot be started anew",
            "farmctl rc update -f FILE --now (or daemonset update) writes a manifest with its owner",
        )
        for entry, sha in referring
        if sha not in survey.manifests
    ]
