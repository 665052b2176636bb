"""Where the named volumes of one plan go (uncloud ``scheduler.VolumeScheduler``): pure.

Services that share a volume stand together, a volume that exists is used and never made a second time, and a
global service has each of its volumes on each of its machines. What must never break: a volume whose only
copies lie on machines that its service cannot use is refused. Made anew elsewhere it would be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from scheduler.cluster import ClusterState, Machines
from scheduler.errors import VolumeRefused
from scheduler.model import PlacementRequest
from store.nodes import NodeVolume

LOCAL = "local"


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A named volume as a service wants it; without a ``driver`` any that exists will do.

    An ``external`` one is never made.
    """

    name: str
    driver: str | None = None
    options: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    no_copy: bool = False
    subpath: str = ""
    external: bool = False

    def matches(self, existing: NodeVolume) -> bool:
        """Whether a machine's volume of this name will do."""
        if self.driver is None:
            return True
        return (existing.driver or LOCAL) == (self.driver or LOCAL) and existing.options == self.options


class VolumeUser(msgspec.Struct, frozen=True, kw_only=True):
    """A service: what the scheduler is asked for its pods, and the named volumes that it mounts.

    ``everywhere``: a global one. Services with one ``together`` stand on one machine, ``standing`` are those
    where its pods are now.
    """

    service: str
    request: PlacementRequest
    volumes: Sequence[Volume] = ()
    everywhere: bool = False
    together: str = ""
    standing: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """The volumes to make, by machine, and the machines that are left for each service."""

    create: Mapping[str, tuple[Volume, ...]]
    machines: Mapping[str, Machines]


@dataclass(slots=True)
class _Shared:
    """One volume with the services that mount it."""

    volume: Volume
    users: list[VolumeUser] = field(default_factory=list)

    @property
    def everywhere(self) -> bool:
        return any(user.everywhere for user in self.users)


_Share = tuple[str, list[VolumeUser]]
"""What some services share, in words, and these services."""

_Shares = Mapping[str, Sequence[_Share]]
"""The shares of each service, by its name."""


class VolumeScheduler:
    """Chooses machines for the volumes of some services, which are checked at once.

    Raises:
        VolumeRefused: two services with one name, one volume described in two ways, or one that exists with
            another driver or other options.
    """

    def __init__(self, state: ClusterState, users: Sequence[VolumeUser]) -> None:
        self._state = state
        self._users = list(users)
        self._volumes: dict[str, _Shared] = {}
        names: set[str] = set()
        for user in users:
            if user.service in names:
                _refuse("duplicate", f"services.{user.service}: found twice, expected each name once")
            names.add(user.service)
            for volume in user.volumes:
                self._share(user, volume)
        for name, shared in sorted(self._volumes.items()):
            self._check_existing(name, shared)

    def _share(self, user: VolumeUser, volume: Volume) -> None:
        shared = self._volumes.setdefault(volume.name, _Shared(volume))
        if shared.volume != volume:
            first = shared.users[0].service
            _refuse(
                "differs",
                f"volumes.{volume.name}: services {first} and {user.service} describe it differently,"
                " expected the same driver, options and labels",
            )
        if user not in shared.users:
            shared.users.append(user)

    def _check_existing(self, name: str, shared: _Shared) -> None:
        for machine, volumes in sorted(self._state.volumes.items()):
            existing = volumes.get(name)
            if existing is not None and not shared.volume.matches(existing):
                _refuse(
                    "mismatch",
                    f"volumes.{name}: exists on {machine} with driver {existing.driver or LOCAL!r} and other"
                    " options; name another volume, or take these options, or delete that one with its data",
                )
        if shared.volume.external and not self._state.having(name):
            _refuse("external", f"volumes.{name}: is external and on no machine; create it there first")

    def schedule(self) -> Schedule:
        """Choose, and note the new volumes in the state.

        Raises:
            NoMachine: no machine for a service, by placement alone.
            VolumeRefused: rules and volumes exclude one another.
        """
        sets = {user.service: self._placed(user) for user in self._users}
        shares = self._sharing(self._reach_existing(sets))
        self._propagate(sets, shares, sets)
        self._gather(sets, shares)
        create: dict[str, list[Volume]] = {}
        for name, shared in sorted(self._volumes.items()):
            machines = self._chosen(name, shared, sets)
            self._state.schedule(name, machines)
            for machine in self._state.listed(machines):
                create.setdefault(machine, []).append(shared.volume)
            if machines and not shared.everywhere:
                self._pin(shared.users, machines, sets, shares)
        return Schedule({machine: tuple(made) for machine, made in sorted(create.items())}, sets)

    def _placed(self, user: VolumeUser) -> Machines:
        eligible = self._state.suitable(user.request).eligible
        if not eligible:
            raise self._state.no_machine(user.request, user.service)
        return eligible

    def _reach_existing(self, sets: dict[str, Machines]) -> list[_Shared]:
        """Leave each service the machines that have its volumes; the volumes that are nowhere."""
        missing = []
        for name, shared in sorted(self._volumes.items()):
            if shared.everywhere:
                if single := [user.service for user in shared.users if not user.everywhere]:
                    _refuse(
                        "global",
                        f"volumes.{name}: the replicated service {single[0]} and a global one both mount it,"
                        " expected a volume for each",
                    )
                continue
            there = self._state.having(name)
            if not there:
                missing.append(shared)
                continue
            for user in shared.users:
                sets[user.service] &= there
                if not sets[user.service]:
                    where = ", ".join(sorted(self._state.listed(there)))
                    _refuse(
                        "unreachable",
                        f"services.{user.service}: volume {name} is on {where} alone,"
                        " where the service cannot be",
                    )
        return missing

    def _sharing(self, missing: Iterable[_Shared]) -> _Shares:
        """The services that run together: those with one new volume, and those of one group."""
        groups: dict[str, list[VolumeUser]] = {}
        for user in self._users:
            if user.together:
                groups.setdefault(user.together, []).append(user)
        shares = [(f"volume {each.volume.name}", each.users) for each in missing]
        shares += [(f"project {name}", users) for name, users in sorted(groups.items())]
        found: dict[str, list[_Share]] = {}
        for share in shares:
            for user in share[1]:
                found.setdefault(user.service, []).append(share)
        return found

    def _propagate(self, sets: dict[str, Machines], shares: _Shares, touched: Iterable[str]) -> None:
        """Reduce the machines of services that run together to those that suit all of them; the sets of
        ``touched`` have changed.
        """
        waiting = dict.fromkeys(touched)
        while waiting:
            for what, users in shares.get(waiting.popitem()[0], ()):
                common = -1
                for user in users:
                    common &= sets[user.service]
                if not common:
                    names = ", ".join(sorted(user.service for user in users))
                    _refuse("colocate", f"{what}: no machine suits all of the services {names} that share it")
                for user in users:
                    if sets[user.service] != common:
                        sets[user.service] = common
                        waiting[user.service] = None

    def _gather(self, sets: dict[str, Machines], shares: _Shares) -> None:
        """Choose one machine per group: the one with most of its pods, otherwise the emptiest."""
        for group in sorted({user.together for user in self._users if user.together}):
            users = [user for user in self._users if user.together == group]
            common = sets[users[0].service]
            standing = [name for user in users for name in user.standing if self._state.bits([name]) & common]
            best = max(sorted(set(standing)), key=standing.count, default="")
            best = best or next(self._state.emptiest(common, {}))
            self._pin(users, self._state.bits([best]), sets, shares)

    def _chosen(self, name: str, shared: _Shared, sets: Mapping[str, Machines]) -> Machines:
        """Where the volume is made: nowhere if it exists, on one machine, or on all of a global service."""
        if shared.everywhere:
            wanted = 0
            for user in shared.users:
                wanted |= sets[user.service]
            return wanted & ~self._state.having(name)
        if self._state.having(name):
            return 0
        return self._state.bits([min(self._state.listed(sets[shared.users[0].service]))])

    def _pin(
        self,
        users: Sequence[VolumeUser],
        machines: Machines,
        sets: dict[str, Machines],
        shares: _Shares,
    ) -> None:
        for user in users:
            sets[user.service] = machines
        self._propagate(sets, shares, [user.service for user in users])


def _refuse(why: str, text: str) -> NoReturn:
    raise VolumeRefused(text, why=why)
