"""Finds programs that run as a user as whom their node would start none today, as root: an earlier version of
the agent started them, and they keep their user until their manifests change.
"""

from __future__ import annotations

from collections.abc import Iterator

from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from store.reality import Reality

FIX = "change its manifest, for example by naming its user: the new pod runs as that user (docs/workloads.md)"


def check(survey: Survey) -> Iterator[Finding]:
    """A finding for each such pod."""
    for entry, reality in survey.decoded("reality", Reality):
        if reality.old_user:
            node, instance = survey.keys.reality_parts(entry.key)
            what = (
                f"{instance} on {node} runs as {reality.old_user}: an earlier version of the agent started it"
            )
            yield Finding("old-user", survey.short(entry.key), what, FIX)
