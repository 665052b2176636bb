"""Deployments as people name them, and the nouns of the owners that they change."""

from __future__ import annotations

from typing import Any

import msgspec

from farmd import kinds
from farmd.commands.noun import Noun
from farmd.commands.specs import SpecFile
from store.deployments import Deployment, DeploymentStatus
from store.words import count_of


class DeploymentSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A deployment as ``get --file`` shows it."""

    name: str
    project: str = ""
    reason: str = ""


def _facts(deployment: Deployment, status: DeploymentStatus | None) -> list[tuple[str, str]]:
    found = [
        ("Services", ", ".join(goal.name for goal in deployment.goals)),
        ("Project", deployment.project or "none"),
        ("Begun by", deployment.by),
    ]
    for each in status.services if status is not None else ():
        turn = "back, " if each.back else ""
        counts = f"{each.proven} of {each.wanted} proven, {each.outdated} outdated"
        found.append((each.name, f"{turn}{each.phase}: {counts}{f': {each.reason}' if each.reason else ''}"))
    return found


DEPLOYMENT: Noun[DeploymentSpec, Deployment] = Noun(
    file=SpecFile(spec=DeploymentSpec, record=Deployment, kept={}),
    told=lambda deployment: {"services": count_of(len(deployment.goals), "service")},
    facts=_facts,
)


def owner_noun(family: str) -> Noun[Any, Any]:
    """The noun of a family that owns pods: another kind's, so the registry names it."""
    return kinds.asked(family)
