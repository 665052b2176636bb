"""The base of kinds of work whose items are objects in a Kubernetes cluster, with their fence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from farmd.failsafe.evidence import UNDECODABLE_SHARE, too_many_broken
from farmd.farm.errors import ClaimLost
from farmd.kubernetes.contact import KubernetesSettings
from farmd.kubernetes.errors import Claimed
from farmd.kubernetes.informer import VANISHED_SHARE, Informer
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.kind import Kind
from store.errors import SessionSuspended
from store.locks import Claim
from store.ports import Clock, Recorder
from store.sessions import Session

# The evidence that what a farm reads of a cluster is not the truth; it freezes removals there (R18, R19).
#
# The same checks serve every kind of work whose objects lie in Kubernetes. Each text is stable, because an
# acknowledgement names it.

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


# The base of kinds of work whose items are objects in a Kubernetes cluster.
#
# The farm's feature for the cluster is there while the cluster answers, so items go to farms that reach it.


class KubernetesKind(Kind):
    """A kind in one cluster; ``session`` is that of its last claim."""

    def __init__(self, context: Context) -> None:
        settings: KubernetesSettings = context.sections["kubernetes"]
        self.contact = settings.contact
        self.resync = settings.resync
        self.session: Session | None = None
        super().__init__(context)
        if self.name in context.guards:
            self.guard.evidence += evidence(settings.name, self.informers, context.clock)
            self.guard.evidence.append(self.contact.stranger)
        self.contact.informers += self.informers

    @property
    @abstractmethod
    def informers(self) -> Sequence[Informer[Any]]:
        """All that it watches in the cluster."""

    @property
    @abstractmethod
    def wakes(self) -> Mapping[str, Wake]:
        """The wakes of its workers, by item."""

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the last statuses. What is planned from may lag: a claim's first write is conditional on the
        very version of the object (R15, R16).
        """
        await self.recollection.read(items)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The contact with the cluster, and what wakes each worker now and then."""
        return (*super().background(), self._sweep(), self.contact.run(self.context))

    def publish(self, recorder: Recorder) -> None:
        """Write what a scrape needs of the cluster, too."""
        super().publish(recorder)
        self.contact.publish(recorder)

    def validity(self) -> float:
        """Seconds that a write may take (R16).

        Raises:
            SessionSuspended: nothing may be written now.
        """
        if self.session is None:
            raise SessionSuspended("no session yet")
        self.session.require()
        return self.session.remaining()

    async def _sweep(self) -> None:
        """Look at each item every ``resync`` seconds, independent of events."""
        while True:
            await self.context.clock.sleep(self.resync * self.context.rng.uniform(0.9, 1.1))
            for wake in self.wakes.values():
                wake.set()


# The claim on an object outside of Consul: later owners refuse what an earlier one still sends (R16).


def text(context: Context, claim: Claim) -> str:
    """A claim as objects bear it: ``<cluster id>/<ModifyIndex of the lock>``."""
    return f"{context.cluster}/{claim.index}"


async def check(context: Context, claim: Claim, found: str, *, fenced: bool) -> None:
    """Check the claim that an object bears; ``fenced``: this claim has written there already.

    Raises:
        Claimed: farms of another cluster own the object.
        ClaimLost: a later claim wrote to it, and our lock is not ours any more.
    """
    cluster, _, index = found.rpartition("/")
    if not cluster or found == text(context, claim):
        return
    if cluster != context.cluster:
        raise Claimed(f"farms of another cluster ({cluster}) own it", status=409)
    if index.isdecimal() and int(index) > claim.index and not fenced:
        # A restored Consul gives lower indexes: only our lock itself tells.
        lock = await context.client.read(claim.key, mode="consistent")
        if lock is None or lock.session != claim.session or lock.modify_index != claim.index:
            raise ClaimLost(f"{claim.item}: a later claim wrote to the object")
