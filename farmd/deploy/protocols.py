"""What plans and operations need of the outside, as Protocols: farm, preview and test each have theirs."""

from __future__ import annotations

from typing import Protocol

from farmd.deploy.spec import ServiceSpec, VolumeSpec
from store.pods import Place


class NoDigest(Exception):
    """The digest of an image is unknown. The message says why, and contains no part of a login.

    ``absent``: the registry answered that it has no such image.
    """

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class ImageResolverClient(Protocol):
    """Knows which digest a registry serves for a tag."""

    async def digest(self, image: str) -> str:
        """``sha256:…``.

        Raises:
            NoDigest: the registry does not answer, or has no such image.
        """


class NameResolver(Protocol):
    """Names for people."""

    def machine_name(self, machine: str) -> str:
        """A machine's name; what it does not know comes back as it is."""

    def container_name(self, instance: str) -> str:
        """A pod's name; what it does not know comes back as it is."""


class DNSClient(Protocol):
    """Knows the domain in which services are found. Farms write the names (``farmd.catalog``)."""

    async def domain(self) -> str:
        """The domain of Consul's DNS, such as ``consul``."""


class VolumeClient(Protocol):
    """Makes volumes."""

    async def create_volume(self, volume: VolumeSpec, machine: str) -> None:
        """Record a volume on a machine. The agent creates it at the first start of a pod that uses it."""


class Client(Protocol):
    """Carries operations out: a farm makes fenced changes of them, a test a list."""

    async def run(self, service: str, spec: ServiceSpec, machine: str) -> None:
        """Place one more pod on a machine."""

    async def replace(self, service: str, spec: ServiceSpec, place: Place) -> None:
        """Give a pod another manifest on its node: it stops, then the new one starts."""

    async def stop(self, service: str, place: Place) -> None:
        """Stop a pod, so that its ports are free."""

    async def remove(self, service: str, place: Place) -> None:
        """Remove a pod."""

    async def hook(self, service: str, spec: ServiceSpec, machine: str) -> None:
        """Run a service's hook on a machine, to its end."""
