"""Dynamic ports: picked from the agent's range, kept across restarts, never assigned twice.

A port is a number of one protocol: 53/udp and 53/tcp are two. It counts as free if the agent can bind it at
that moment. Another process may take it before the workload binds it; then the workload fails, and its next
start gets another port.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping

from farmd.agent.errors import StartFailed
from store.manifests import Manifest, Port
from store.ports import Rng

_ANY = Port()
_EVERYWHERE = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))

Number = tuple[int, str]
"""(port, protocol); an empty protocol stands for both."""


def bindable(number: int, port: Port = _ANY) -> bool:
    """Whether a server could listen on this number now, in the port's protocol and at its address.

    A number that only root may bind counts as free.
    """
    family = socket.AF_INET6 if ":" in port.host_ip else socket.AF_INET
    places = ((family, port.host_ip),) if port.host_ip else _EVERYWHERE
    for family, host in places:
        try:
            with socket.socket(
                family, socket.SOCK_DGRAM if port.protocol == "udp" else socket.SOCK_STREAM
            ) as probe:
                if port.protocol == "tcp":  # for datagrams the option would share a port that is in use
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, number))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return True


class PortRange:
    """Hands out the ports ``first`` … ``last`` of one agent."""

    def __init__(
        self, first: int, last: int, rng: Rng, *, free: Callable[[int, Port], bool] = bindable
    ) -> None:
        self._first = first
        self._last = last
        self._rng = rng
        self._free = free
        self._held: dict[str, dict[str, Number]] = {}

    def remember(self, instance: str, ports: Mapping[str, int]) -> None:
        """Remember the ports of an adopted instance, whose protocols are known at its next start."""
        self._held[instance] = {name: (number, "") for name, number in ports.items()}

    def release(self, instance: str) -> None:
        """Free the ports of an instance that is gone."""
        self._held.pop(instance, None)

    def assign(self, instance: str, manifest: Manifest, *, same: bool = False) -> dict[str, int]:
        """Ports by name for a start: fixed ports as given, dynamic ports as before if still free.

        ``same``: dynamic ports that it had before are as fixed, because others know them.

        Raises:
            StartFailed: a fixed port is taken, or the range has no free port left.
        """
        before = {name: number for name, (number, _) in self._held.get(instance, {}).items()}
        others = {held for name, ports in self._held.items() if name != instance for held in ports.values()}
        given: dict[str, Number] = {}
        for name, port in sorted(manifest.ports.items(), key=lambda item: item[1].port == 0):
            if number := port.port or (before.get(name, 0) if same else 0):
                number = self._fixed(name, number, port, others)
            else:
                number = self._dynamic(name, before.get(name, 0), port, others | set(given.values()))
            given[name] = number, port.protocol
        self._held[instance] = given
        return {name: number for name, (number, _) in given.items()}

    def _fixed(self, name: str, number: int, port: Port, others: set[Number]) -> int:
        if self._taken(number, port, others) or not self._free(number, port):
            at = f" at {port.host_ip}" if port.host_ip else ""
            raise StartFailed(
                f"ports.{name}: port {number}/{port.protocol} is in use on this node{at}",
                field=f"ports.{name}",
            )
        return number

    @staticmethod
    def _taken(number: int, port: Port, held: set[Number]) -> bool:
        return (number, port.protocol) in held or (number, "") in held

    def _dynamic(self, name: str, before: int, port: Port, held: set[Number]) -> int:
        def free(number: int) -> bool:
            return not self._taken(number, port, held) and self._free(number, port)

        if self._first <= before <= self._last and free(before):
            return before
        size = self._last - self._first + 1
        begin = min(int(self._rng.uniform(0, size)), size - 1)
        for step in range(size):
            number = self._first + (begin + step) % size
            if free(number):
                return number
        raise StartFailed(
            f"ports.{name}: no free port from {self._first} to {self._last}", field=f"ports.{name}"
        )
