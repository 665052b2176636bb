"""The steps of a deployment, each of which can be carried out, shown and compared (uncloud ``operation``).

An operation is a value: it holds what to do, never how far it came. A farm that takes over a deployment plans
again from the present state, so no list of operations is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from farmd.deploy.protocols import Client, NameResolver, VolumeClient
from farmd.deploy.spec import ServiceSpec, VolumeSpec
from store.pods import Place
from store.services import Mode

Way = Literal["start-first", "stop-first"]


class Operation(Protocol):
    """One step."""

    async def execute(self, client: Client) -> None:
        """Carry it out. An error of the client ends the sequence that it is part of."""

    def format(self, resolver: NameResolver) -> str:
        """The step for people, on one line or more."""


@dataclass(frozen=True, slots=True)
class RunContainerOperation:
    """Place one more pod on a machine."""

    service_id: str
    spec: ServiceSpec
    machine: str

    async def execute(self, client: Client) -> None:
        """Place it."""
        await client.run(self.service_id, self.spec, self.machine)

    def format(self, resolver: NameResolver) -> str:
        """For people."""
        return f"+ run on {resolver.machine_name(self.machine)}"

    def __str__(self) -> str:
        return f"run {self.service_id} on {self.machine}"


@dataclass(frozen=True, slots=True)
class StopContainerOperation:
    """Stop a pod that holds what another needs."""

    service_id: str
    place: Place

    async def execute(self, client: Client) -> None:
        """Stop it."""
        await client.stop(self.service_id, self.place)

    def format(self, resolver: NameResolver) -> str:
        """For people."""
        return f"- stop {_named(self.place, resolver)}"

    def __str__(self) -> str:
        return f"stop {'/'.join(self.place)}"


@dataclass(frozen=True, slots=True)
class RemoveContainerOperation:
    """Remove a pod."""

    service_id: str
    place: Place

    async def execute(self, client: Client) -> None:
        """Remove it."""
        await client.remove(self.service_id, self.place)

    def format(self, resolver: NameResolver) -> str:
        """For people."""
        return f"- remove {_named(self.place, resolver)}"

    def __str__(self) -> str:
        return f"remove {'/'.join(self.place)}"


@dataclass(frozen=True, slots=True)
class ReplaceContainerOperation:
    """Replace a pod on its machine: start-first beside it, stop-first in its place; ``why`` if unusual."""

    service_id: str
    spec: ServiceSpec
    place: Place
    order: Way
    why: str = ""

    async def execute(self, client: Client) -> None:
        """Replace it."""
        if self.order == "stop-first":
            await client.replace(self.service_id, self.spec, self.place)
            return
        await client.run(self.service_id, self.spec, self.place[0])
        await client.remove(self.service_id, self.place)

    def format(self, resolver: NameResolver) -> str:
        """For people."""
        sign = "+/-" if self.order == "start-first" else "-/+"
        return (
            f"{sign} replace {_named(self.place, resolver)} {self.order}{f': {self.why}' if self.why else ''}"
        )

    def __str__(self) -> str:
        return f"replace {'/'.join(self.place)} {self.order}"


@dataclass(frozen=True, slots=True)
class RunPreDeployOperation:
    """Run the hook of a service, which must end well before its first pod changes."""

    service_id: str
    spec: ServiceSpec
    machine: str

    async def execute(self, client: Client) -> None:
        """Run it to its end."""
        await client.hook(self.service_id, self.spec, self.machine)

    def format(self, resolver: NameResolver) -> str:
        """For people."""
        hook = self.spec.pre_deploy
        words = " ".join(hook.command) if hook is not None else ""
        limit = f", at most {hook.timeout:g} s" if hook is not None else ""
        return f"hook {words} on {resolver.machine_name(self.machine)}{limit}"

    def __str__(self) -> str:
        return f"hook of {self.service_id} on {self.machine}"


@dataclass(frozen=True, slots=True)
class CreateVolumeOperation:
    """Note a volume on a machine, whose agent makes it at the first start.

    It belongs to a project and not to one of its services, so it is a step of no service's plan.
    """

    machine: str
    volume: VolumeSpec

    async def execute(self, client: VolumeClient) -> None:
        """Note it."""
        await client.create_volume(self.volume, self.machine)

    def format(self, resolver: NameResolver) -> str:
        """For people."""
        return f"+ create volume {self.volume.volume_name} on {resolver.machine_name(self.machine)}"

    def __str__(self) -> str:
        return f"create volume {self.volume.volume_name} on {self.machine}"


@dataclass(frozen=True, slots=True)
class SequenceOperation:
    """Steps in order; the first error ends it and is what it raises."""

    operations: tuple[Operation, ...] = ()

    async def execute(self, client: Client) -> None:
        """Carry them out one after the other."""
        for operation in self.operations:
            await operation.execute(client)

    def format(self, resolver: NameResolver) -> str:
        """For people, a step a line."""
        return "\n".join(operation.format(resolver) for operation in self.operations)

    def __str__(self) -> str:
        return "; ".join(map(str, self.operations))

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)


@dataclass(frozen=True, slots=True)
class Plan(SequenceOperation):
    """The plan that makes one service match its spec. ``short``: why pods found no place."""

    service_id: str = ""
    service_name: str = ""
    short: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """Names from two maps; what they do not know is shown as it is."""

    machines: Mapping[str, str] = field(default_factory=dict)
    containers: Mapping[str, str] = field(default_factory=dict)

    def machine_name(self, machine: str) -> str:
        """A machine's name."""
        return self.machines.get(machine, machine)

    def container_name(self, instance: str) -> str:
        """A pod's name."""
        return self.containers.get(instance, instance)


def _named(place: Place, resolver: NameResolver) -> str:
    return f"{resolver.container_name(place[1])} on {resolver.machine_name(place[0])}"


# The services that stand and their pods, as a plan of a deployment sees them.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePod:
    """One pod of a service. ``spec``: what it was placed for; None if nobody can read that.

    ``running``: nobody says that it ended, or it is ``done`` for good and well. ``failing``: it runs and does
    not pass. ``available``: as ``farmd.pods.state`` has it. ``mine``: placed by the deployment that plans,
    on its present turn; then it is ``proven``, has ``failed`` for a reason, or has yet to show which
    (``farmd.deploy.gate``); ``refused`` is why its agent does not start it.
    """

    place: Place
    spec: ServiceSpec | None
    running: bool = True
    done: bool = False
    failing: bool = False
    mine: bool = False
    available: bool = False
    proven: bool = False
    failed: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingService:
    """A service that exists, and all of its pods."""

    id: str
    name: str
    mode: Mode = "replicated"
    containers: tuple[ServicePod, ...] = ()
