"""A spec with everything decided that people may leave open (uncloud ``ServiceSpecResolver``).

Resolving what is resolved changes nothing; uncloud's added an address each time, and recreated all pods.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from farmd.deploy import port_spec
from farmd.deploy.model import LogDriver, ServiceSpec
from farmd.deploy.names import generate_service_name
from farmd.deploy.plan import volume_defaults
from farmd.deploy.validation import validate
from store.ports import Rng


@dataclass(frozen=True, slots=True)
class ServiceSpecResolver:
    """Resolves specs; ``rng`` draws the names of services without one."""

    rng: Rng

    def resolve(self, spec: ServiceSpec) -> ServiceSpec:
        """The same service, valid, named and with defaults.

        Raises:
            InputInvalid: naming the first field that cannot be.
        """
        validate(spec)
        container = spec.container
        return replace(
            spec,
            name=spec.name or generate_service_name(container.image, self.rng),
            replicas=spec.replicas if spec.mode == "replicated" else 1,
            ports=sorted(spec.ports, key=port_spec.text),
            volumes=sorted(map(volume_defaults, spec.volumes), key=lambda each: each.name),
            container=replace(container, log=container.log or LogDriver()),
        )
