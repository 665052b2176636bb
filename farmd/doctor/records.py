"""Finds records that do not decode, and references to missing manifests."""

from __future__ import annotations

from collections import Counter

from farmd.doctor.model import Finding
from farmd.doctor.repairs import way_out
from farmd.doctor.survey import Survey
from farmd.kinds import KINDS
from store import families
from store.errors import RecordInvalid
from store.pods import Pod
from store.reality import Intent

MOST_OF_NODE = 16 * 1024 * 1024


def check(survey: Survey) -> list[Finding]:
    """Check every record of the families that this version knows."""
    return [*_undecodable(survey), *_large(survey), *_without_manifest(survey), *_corrupt_manifests(survey)]


def _undecodable(survey: Survey) -> list[Finding]:
    findings = []
    for name in (family.name for family in families.FAMILIES.values() if family.record is not None):
        for entry in survey.records(name):
            try:
                families.decode(survey.keys, name, entry)
            except RecordInvalid as error:
                fix, removal = way_out(survey, name, entry)
                fix = f"if a newer version wrote it, let that version correct it; else {fix}"
                findings.append(
                    Finding("record-invalid", survey.short(entry.key), error.message, fix, removal)
                )
    return findings


def _large(survey: Survey) -> list[Finding]:
    """Nodes with more reality than agents write: Consul's servers hold all of it in memory."""
    sizes = Counter[str]()
    for entry in survey.well_formed("reality"):
        sizes[survey.keys.reality_parts(entry.key)[0]] += len(entry.value)
    return [
        Finding(
            "reality-large",
            f"agents/{node}",
            f"its reality takes {-(-size >> 20)} MiB in Consul, expected at most {MOST_OF_NODE >> 20} MiB",
            "find out who has its agent's token, and withdraw it; farmctl node forget removes the rest",
        )
        for node, size in sorted(sizes.items())
        if size > MOST_OF_NODE
    ]


def _without_manifest(survey: Survey) -> list[Finding]:
    referring = [(entry, sha) for _, entry, record in survey.owners() for sha in record.manifests]
    referring += [(entry, pod.manifest) for entry, pod in survey.decoded("pods", Pod)]
    intents = list(survey.decoded("intent", Intent))
    referring += [(entry, intent.manifest) for entry, intent in intents]
    peerless = [(entry, intent.peers) for entry, intent in intents if intent.peers not in {"", *survey.peers}]
    return [
        Finding(
            "manifest-missing",
            survey.short(entry.key),
            f"it refers to the manifest {sha[:12]}, which is not there: it cannot be started again",
            f"{_update()} writes a manifest with its owner",
        )
        for entry, sha in referring
        if sha not in survey.manifests
    ] + [
        Finding(
            "manifest-missing",
            survey.short(entry.key),
            f"it refers to the document of peers {sha[:12]}, which is not there: it cannot be started again",
            "if its job does not restart by itself, stop and resume it",
        )
        for entry, sha in peerless
    ]


def _corrupt_manifests(survey: Survey) -> list[Finding]:
    return [
        Finding(
            "manifest-invalid",
            f"manifests/{sha}",
            "its body is not what its digest names: no node starts it",
            f"{_update()} with the same pod writes it again",
        )
        for sha, manifest in survey.manifests.items()
        if manifest is None
    ]


def _update() -> str:
    """The command that writes a manifest again."""
    return f"farmctl {'|'.join(KINDS[family.name].noun for family in families.owners())} update -f FILE --now"
