"""The registry of the kinds of work, asked by everything that is not about one kind alone.

Each kind declares itself in its package (``farmd.declaration``). What a kind's records are is in
``store.families``, under the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from farmd import apps, catalog, daemonset, deploy, housekeeping, jobs, nodes, replication, rollout, schedules
from farmd.declaration import KindOfWork
from farmd.kubernetes import jobs as kubejobs
from farmd.kubernetes import knative

if TYPE_CHECKING:
    from farmd.commands.bundled import Bundled, Exported
    from farmd.commands.noun import Noun

KINDS: dict[str, KindOfWork] = {
    package.DECLARATION.family: package.DECLARATION
    for package in (
        *(replication, rollout, deploy, nodes, daemonset, jobs, schedules, apps),
        *(kubejobs, knative, catalog, housekeeping),
    )
}

# Nouns of records that are nobody's work by themselves.
OTHER_NOUNS = {"pods": "pod", "services": "service"}
OTHERS_FIRST = {"services": "farmctl service create NAME --port PORT rc/NAME"}
_OTHERS_UNBUNDLED = {"pod": "no pod: write its owner, such as an rc"}


# How people change a service, whose parts they must leave alone.
_OTHERS_WAYS = {"services": "farmctl service scale|rollback|delete {name}, or farmctl deploy"}


def ways(family: str, name: str) -> str:
    """The commands that change what a part belongs to; empty: this version knows none."""
    kind = KINDS.get(family)
    return (kind.way if kind is not None else _OTHERS_WAYS.get(family, "")).format(name=name)


def asked(family: str) -> Noun[Any, Any]:
    """The commands on the records of a family that people name."""
    noun = KINDS[family].asked
    assert noun is not None, family
    return noun()


def _service() -> Bundled:
    from farmd.deploy.bundled import BUNDLED

    return BUNDLED


def _noun_in_bundles(family: str) -> Bundled:
    from farmd.commands.bundled import BundledNoun

    return BundledNoun(asked(family))


def bundled() -> dict[str, Callable[[], Bundled]]:
    """What bundles may hold, by noun, and how they do."""
    own = {
        kind.noun: kind.bundled or partial(_noun_in_bundles, kind.family)
        for kind in KINDS.values()
        if kind.bundled or kind.bundle_order
    }
    return own | {"service": _service}


def exported() -> dict[str, Callable[[], Exported]]:
    """What can be written as files, by noun, and how it is."""
    return {**bundled(), **{kind.noun: kind.exported for kind in KINDS.values() if kind.exported}}


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


# The runbooks of farms' alerts that are not about one kind alone, by the beginning of an alert's name.
_RUNBOOKS = (("FarmdFrozen", "FarmdFrozen"), ("FarmdKubernetes", "FarmdKubernetesSilent"))


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
    known = (*_RUNBOOKS, *(each for kind in KINDS.values() for each in kind.runbooks))
    return next((runbook for begin, runbook in known if alert.startswith(begin)), "FarmdBlocked")


def listed(family: str, name: str) -> str:
    """An item where those of all kinds are listed: the main kind's by name alone."""
    return name if KINDS[family].main else title(family, name)


def family_of(word: str) -> str:
    """The family that a noun or an alias means; any other word itself."""
    for kind in KINDS.values() if word else ():
        if word == kind.noun or word in kind.aliases:
            return kind.family
    return next((family for family, noun in OTHER_NOUNS.items() if noun == word), word)
