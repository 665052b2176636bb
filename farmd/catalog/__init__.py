"""The kind of work ``catalog``: the pods of services in Consul's own catalogue, behind farmd's fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from collections.abc import Callable

    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class CatalogKind(KindOfWork):
    """Services in Consul's catalogue."""

    family = "catalog"
    one, many = "service in Consul's catalogue", "services in Consul's catalogue"
    among = "services"
    shown = "farmctl service describe"

    def runs(self) -> type[Kind]:
        from farmd.catalog.kind import Catalog

        return Catalog

    def waits(self) -> Callable[[Any], bool]:
        from farmd.catalog.asked import asks

        return asks

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.catalog.metrics import METRICS

        return METRICS
