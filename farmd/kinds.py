"""The registry of the kinds of work, asked by everything that is not about one kind alone.

Each kind declares itself in its package (``farmd.declaration``). What a kind's records are is in
``store.families``, under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import farmd
from farmd import (
    apps,
    catalog,
    daemonset,
    deploy,
    housekeeping,
    jobs,
    jobtemplates,
    nodes,
    replication,
    rollout,
    schedules,
)
from farmd.declaration import KindOfWork, NamedFamily
from farmd.kubernetes import jobs as kubejobs
from farmd.kubernetes import knative

if TYPE_CHECKING:
    import farmd.deploy.bundled
    from farmd.commands.bundled import Bundled, Exported
    from farmd.commands.noun import Noun

KINDS: dict[str, KindOfWork] = {
    package.DECLARATION.family: package.DECLARATION
    for package in (
        *(replication, rollout, deploy, nodes, daemonset, jobs, schedules, jobtemplates, apps),
        *(kubejobs, knative, catalog, housekeeping),
    )
}

_PODS = NamedFamily(
    family="pods", one="pod", many="pods", noun="pod", unbundled="no pod: write its owner, such as an rc"
)
_SERVICES = NamedFamily(
    family="services",
    one="service",
    many="services",
    noun="service",
    first="farmctl service create NAME --port PORT rc/NAME",
    way="farmctl service scale|rollback|delete {name}, or farmctl deploy",
    bundled=lambda: farmd.deploy.bundled.BUNDLED,
)
OTHERS: dict[str, NamedFamily] = {each.family: each for each in (_PODS, _SERVICES)}
"""Families of records that have names, and that no kind of work claims."""


def named() -> Iterator[NamedFamily]:
    """All kinds of work, and the other families that people name."""
    return chain(KINDS.values(), OTHERS.values())


def _named(family: str) -> NamedFamily | None:
    return KINDS.get(family) or OTHERS.get(family)


def ways(family: str, name: str) -> str:
    """The commands that change what a part belongs to; empty: this version knows none."""
    found = _named(family)
    return "" if found is None else found.way.format(name=name)


def asked(family: str) -> Noun[Any, Any]:
    """The commands on the records of a family that people name."""
    noun = KINDS[family].asked
    assert noun is not None, family
    return noun()


def _noun_in_bundles(family: str) -> Bundled:
    from farmd.commands.bundled import BundledNoun

    return BundledNoun(asked(family))


def bundled() -> dict[str, Callable[[], Bundled]]:
    """What bundles may hold, by noun, and how they do."""
    return {
        each.noun: each.bundled or partial(_noun_in_bundles, each.family)
        for each in named()
        if each.bundled or each.bundle_order
    }


def exported() -> dict[str, Callable[[], Exported]]:
    """What can be written as files, by noun, and how it is."""
    return {**bundled(), **{kind.noun: kind.exported for kind in KINDS.values() if kind.exported}}


def unbundled() -> dict[str, str]:
    """What bundles hold in place of other nouns, by noun."""
    return {each.noun: each.unbundled for each in named() if each.unbundled}


def features() -> tuple[str, ...]:
    """What every farm of this version knows, whatever kinds it runs (R11)."""
    return tuple(feature for kind in KINDS.values() for feature in kind.features)


def selectable(family: str) -> bool:
    """Whether farms may choose among the items of a kind by labels."""
    kind = KINDS.get(family)
    return kind is not None and kind.selectable


def noun(family: str) -> str:
    """What people type for a record of a family, as in ``rc/hello``; the family itself if it has no noun."""
    found = _named(family)
    return found.noun or family if found is not None else family


# The runbooks of farms' alerts that are not about one kind alone, by the beginning of an alert's name.
_RUNBOOKS = (("FarmdFrozen", "FarmdFrozen"), ("FarmdKubernetes", "FarmdKubernetesSilent"))


def title(family: str, name: str) -> str:
    """An item as people write it: ``rc/hello``."""
    return f"{noun(family)}/{name}"


def first(family: str) -> str:
    """The command with which people make the first item; empty: none."""
    found = _named(family)
    return "" if found is None else found.first


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
    known = (each.family for each in named() if word and (word == each.noun or word in each.aliases))
    return next(known, word)
