"""The kind of work ``catalog``: the pods of services in Consul's own catalogue, behind farmd's fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.catalog.kind
    import farmd.catalog.metrics
    from store.services import Service
else:
    __getattr__ = submodules(__name__)


def _asks(service: Service) -> bool:
    """Whether a service is to be in the catalogue by its own words."""
    return service.catalog is not None


DECLARATION = KindOfWork(
    family="catalog",
    one="service in Consul's catalogue",
    many="services in Consul's catalogue",
    among="services",
    shown="farmctl service describe",
    runs=lambda: farmd.catalog.kind.Catalog,
    waits=lambda: _asks,
    metrics=lambda: farmd.catalog.metrics.METRICS,
)
