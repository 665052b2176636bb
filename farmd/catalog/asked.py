"""Which services ask to be in Consul's catalogue; imported where nothing else of the kind is needed."""

from __future__ import annotations

from store.services import Service


def asks(service: Service) -> bool:
    """Whether a service is to be in the catalogue by its own words."""
    return service.catalog is not None
