"""What an app's worker asks of the two places where objects lie: records in Consul, and Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from farmd.apps.facts import Act, Live, Ref, Rehearsal
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from store.apps import Entry
from store.errors import OutcomeUnknown


class OutsideUnknown(OutcomeUnknown):
    """A write outside of Consul was not answered, or with a server's error: it may have happened."""


class Objects(Protocol):
    """The objects of one app in one place."""

    async def read(self, entries: Mapping[Ref, Entry], steady: bool) -> Mapping[Ref, Live]:
        """The objects that exist of these entries, and those that bear the app's mark otherwise.

        What an entry without a document differs in is nothing. ``steady``: every object was as wanted at the
        last look, so that no verdict is needed.

        Raises:
            StoreError: something is unknown, so nothing may be planned.
        """

    async def act(self, acts: Sequence[Act], seq: int) -> Mapping[Ref, str]:
        """Do these acts, each fenced and audited; the reasons of those that must wait.

        Raises:
            OutsideUnknown: nobody knows whether something outside of Consul was written.
            StoreError: what was done is unknown, or the app is no longer this worker's.
        """

    def follow(self, refs: Collection[Ref]) -> None:
        """From now on wake the worker when one of these objects changes, and for no other."""

    def unfollow(self) -> None:
        """The worker ended."""


class Outside(Protocol):
    """The objects of one app in Kubernetes, as a person's own login sees them."""

    async def look(self, entry: Entry) -> Live | None:
        """One object; None: it does not exist.

        Raises:
            StoreError: nobody knows.
        """

    async def rehearse(self, act: Act) -> Rehearsal:
        """The server's answer to a creation or an adoption; nothing is written."""


# The objects of an app, by its name, that lie outside of Consul. The last two are what wakes its worker, and
# the seconds that a write may take now (R16).
Elsewhere = Callable[[Context, str, Wake, Callable[[], float]], Objects]
