"""Which services ask to be in Consul's catalogue; imported where nothing else of the kind is needed."""

from __future__ import annotations

from store.services import Catalog, Service

ALL = "catalog.all"
"""The feature of a farm that registers also services that do not ask for it."""


def asks(service: Service) -> bool:
    """Whether a service asks to be in the catalogue."""
    return service.catalog is not None


def wish(service: Service, default: bool) -> Catalog | None:
    """How a service is to be found; ``default``: also one that says nothing, if it has a port."""
    return Catalog() if service.catalog is None and default and service.port else service.catalog
