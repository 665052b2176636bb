"""The evidence that what a farm reads of a cluster is not the truth; it freezes removals there (R18, R19).

The same checks serve every kind of work whose objects lie in Kubernetes. Each text is stable, because an
acknowledgement names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from farmd.failsafe.evidence import UNDECODABLE_SHARE, too_many_broken
from farmd.kubernetes.informer import VANISHED_SHARE, Informer
from store.ports import Clock

# For so long a list that lacked most of what was known is evidence.
SHRANK_SECONDS = 60.0


def evidence(
    cluster: str, informers: Sequence[Informer[Any]], clock: Clock
) -> list[Callable[[], str | None]]:
    """The checks of what a kind of work watches in a cluster."""

    def first(found: Callable[[Informer[Any]], str]) -> Callable[[], str | None]:
        return lambda: next(
            (
                f"kubernetes {cluster}: {text}"
                for informer in informers
                if informer.synced and (text := found(informer))
            ),
            None,
        )

    def vanished(informer: Informer[Any]) -> str:
        return _vanished(informer, clock.mono())

    return [first(_unreadable), first(_undecodable), first(vanished)]


def _unreadable(informer: Informer[Any]) -> str:
    if not informer.doubt:
        return ""
    return f"{informer.source.resource} {'may not be read' if informer.denied else 'are not served'}"


def _undecodable(informer: Informer[Any]) -> str:
    store = informer.store
    unknown = sum(store.get(*key) is None for key in store.broken)
    if not too_many_broken(len(store.broken), len(store) + unknown):
        return ""
    return f"more than {UNDECODABLE_SHARE:.0%} of the {informer.source.resource} do not decode"


def _vanished(informer: Informer[Any], now: float) -> str:
    if now - informer.shrank > SHRANK_SECONDS:
        return ""
    return f"more than {VANISHED_SHARE:.0%} of the {informer.source.resource} vanished at once"
