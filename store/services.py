"""Services: a name for the pods that serve, independent of their present owner.

Those who route ask for the endpoints of a service: the address and the port of each available pod of its
``active`` owners. What manages them changes ``active`` with the owners themselves, in one transaction.

A service with a ``mode`` was deployed: it has one owner, which is a part of it, and every change of it is a
deployment (``store.deployments``).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from store import operations
from store.entry import Stored
from store.keys import Keys
from store.named import Listing, NamedRecords
from store.operations import Operation
from store.ports import KeyReader
from store.quantities import Seconds
from store.times import Time

KIND = "services"
NOUN = "service"

Mode = Literal["replicated", "global"]
Order = Literal["", "start-first", "stop-first"]
OnFailure = Literal["rollback", "pause"]


class UpdateConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a change comes to the pods. An empty ``order``: start-first, unless both cannot run at once.

    ``monitor``: seconds that a new pod without a check must run; None: the house's.
    """

    order: Order = ""
    parallelism: Annotated[int, msgspec.Meta(ge=1, le=50)] = 1
    delay: Seconds = 0.0
    monitor: Seconds | None = None
    min_healthy_time: Seconds = 0.0
    deadline: Seconds = 600.0
    on_failure: OnFailure = "rollback"


class Hook(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A command that must end well before the first pod changes; None: as the container's."""

    command: list[str]
    env: dict[str, str] = {}
    privileged: bool | None = None
    user: str = ""
    timeout: Seconds = 300.0


class Catalog(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a service is found in Consul's catalogue. An empty ``name``: the service's.

    ``canary_tags`` take the place of ``tags`` for the pods of the version that a rollout brings.
    """

    name: str = ""
    tags: list[str] = []
    meta: dict[str, str] = {}
    canary_tags: list[str] = []


class Version(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All that a service should be: the digest of its pods' manifest, and what no pod knows of.

    ``image`` is for people. ``labels`` are the service's own. ``catalog``: how its file says that it is found
    in Consul's catalogue; None: the file says nothing. ``hook_manifest`` is the digest of what the pod
    of ``pre_deploy`` runs: it is kept as long as the version is (R24).
    """

    manifest: Annotated[str, msgspec.Meta(min_length=1)]
    image: str = ""
    mode: Mode = "replicated"
    replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    labels: dict[str, str] = {}
    max_per_node: Annotated[int, msgspec.Meta(ge=0)] = 0
    update: UpdateConfig = UpdateConfig()
    pre_deploy: Hook | None = None
    hook_manifest: str = ""
    on_lost: Literal["replace", "wait"] = "replace"
    unhealthy_after: Seconds = 300.0
    catalog: Catalog | None = None


class Revision(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a deployment made of a service; a failed one has the ``reason``. ``at``: in seconds since the
    epoch.
    """

    number: Annotated[int, msgspec.Meta(ge=1)]
    version: Version
    deployment: str = ""
    result: Literal["done", "reverted"] = "done"
    reason: str = ""
    at: Time = 0.0
    by: str = ""


class Service(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """``port`` is the name of a port in the manifests of ``active``, which are owners of pods as
    ``<family>/<id>``; empty: the pods have none. ``labels`` are the service's own. ``created``: seconds since
    the epoch.

    Of a service that was deployed ``mode`` never changes and ``project`` is what it was deployed with;
    ``version`` is the last one that was released, as ``revision``, and ``history`` has the newest first.
    ``deployment`` is the id of the one that changes it now: nobody else may while that one exists.
    ``part_of`` is the app that it belongs to, and ``open`` are the fields of its file that others may change.
    ``catalog``: how it is found in Consul's catalogue; None: it is there only where farms register every
    service, and not even then with ``catalog_off``.
    """

    id: str
    name: str
    port: str = ""
    active: list[str] = []
    labels: dict[str, str] = {}
    created: Time = 0.0
    project: str = ""
    mode: Mode | Literal[""] = ""
    version: Version | None = None
    revision: Annotated[int, msgspec.Meta(ge=0)] = 0
    history: list[Revision] = []
    deployment: str = ""
    part_of: str = ""
    open: list[str] = []
    catalog: Catalog | None = None
    catalog_off: bool = False


def same(one: Version | None, other: Version | None) -> bool:
    """Whether both versions are equal. ``hook_manifest`` follows from the rest, and earlier versions of
    farmd drop it.
    """
    if one is None or other is None:
        return one is other
    return msgspec.structs.replace(one, hook_manifest=other.hook_manifest) == other


def reference(family: str, owner: str) -> str:
    """An owner of pods as ``active`` names it."""
    return f"{family}/{owner}"


def naming(services: Listing[Service], *owners: str) -> list[Stored[Service]]:
    """The services whose ``active`` names one of these owners, without those that do not decode."""
    return [stored for stored in services.items if not set(owners).isdisjoint(stored.record.active)]


def without(services: Listing[Service], owner: str) -> list[tuple[Stored[Service], list[str]]]:
    """The services that name an owner that goes and others, too, and what they name once it is gone.

    One that names nobody else is left as it is, so that people are told that it serves nobody.
    """
    left = [(each, [ref for ref in each.record.active if ref != owner]) for each in naming(services, owner)]
    return [(stored, active) for stored, active in left if active]


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
