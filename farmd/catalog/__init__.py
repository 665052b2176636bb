"""The kind of work ``catalog``: the pods of services in Consul's own catalogue, behind farmd's fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.catalog.asked
    import farmd.catalog.kind
    import farmd.catalog.metrics
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="catalog",
    one="service in Consul's catalogue",
    many="services in Consul's catalogue",
    among="services",
    shown="farmctl service describe",
    runs=lambda: farmd.catalog.kind.Catalog,
    waits=lambda: farmd.catalog.asked.asks,
    metrics=lambda: farmd.catalog.metrics.METRICS,
)
