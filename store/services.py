"""Services: a name for the pods that serve, whoever owns them at the moment.

Those who route ask for the endpoints of a service: the address and the port of each available pod of its
``active`` owners. A rollout changes ``active`` with the owners themselves, in one transaction.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from store import operations
from store.entry import Stored
from store.keys import Keys
from store.named import Listing, NamedRecords
from store.operations import Operation
from store.ports import KeyReader
from store.times import Time

KIND = "services"
NOUN = "service"


class Service(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """``port`` is the name of a port in the manifests of ``active``, which are owners of pods as
    ``<family>/<id>``. ``labels`` are the service's own. ``created``: seconds since the epoch.
    """

    id: str
    name: str
    port: Annotated[str, msgspec.Meta(min_length=1)]
    active: list[str] = []
    labels: dict[str, str] = {}
    created: Time = 0.0


def reference(family: str, owner: str) -> str:
    """An owner of pods as ``active`` names it."""
    return f"{family}/{owner}"


def naming(services: Listing[Service], *owners: str) -> list[Stored[Service]]:
    """The services whose ``active`` names one of these owners; what does not decode names nobody."""
    return [stored for stored in services.items if not set(owners).isdisjoint(stored.record.active)]


class ServiceStore(NamedRecords[Service]):
    """Reads services and builds the operations that change them."""

    def __init__(self, client: KeyReader, keys: Keys) -> None:
        super().__init__(client, keys, KIND, Service, NOUN)

    def activate(self, stored: Stored[Service], active: list[str]) -> Operation:
        """Let a service name other owners, if it has not changed since it was read.

        It is an operation also where ``active`` stays: then the record is only compared.
        """
        if stored.record.active == active:
            return operations.check_index(stored.key, stored.index)
        return self.replace(stored, msgspec.structs.replace(stored.record, active=active))
