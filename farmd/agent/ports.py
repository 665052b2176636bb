"""Dynamic ports: picked from the agent's range, kept across restarts, never assigned twice.

A port counts as free if the agent can bind it at that moment. Another process may take it before the
workload binds it; then the workload fails, and its next start gets another port.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping

from farmd.agent.errors import StartFailed
from store.manifests import Manifest
from store.ports import Rng


def bindable(port: int) -> bool:
    """Whether a server could listen on the port now; a port that needs root counts as free."""
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return True


class PortRange:
    """Hands out the ports ``first`` … ``last`` of one agent."""

    def __init__(self, first: int, last: int, rng: Rng, *, free: Callable[[int], bool] = bindable) -> None:
        self._first = first
        self._last = last
        self._rng = rng
        self._free = free
        self._held: dict[str, dict[str, int]] = {}

    def remember(self, instance: str, ports: Mapping[str, int]) -> None:
        """Remember the ports of an adopted instance."""
        self._held[instance] = dict(ports)

    def release(self, instance: str) -> None:
        """Free the ports of an instance that is gone."""
        self._held.pop(instance, None)

    def assign(self, instance: str, manifest: Manifest, *, same: bool = False) -> dict[str, int]:
        """Ports by name for a start: fixed ports as given, dynamic ports as before if still free.

        ``same``: dynamic ports that it had before are as fixed, because others know them.

        Raises:
            StartFailed: a fixed port is taken, or the range has no free port left.
        """
        before = self._held.get(instance, {})
        others = {p for name, ports in self._held.items() if name != instance for p in ports.values()}
        given: dict[str, int] = {}
        for name, port in sorted(manifest.ports.items(), key=lambda item: item[1].port == 0):
            if number := port.port or (before.get(name, 0) if same else 0):
                given[name] = self._fixed(name, number, others)
            else:
                given[name] = self._dynamic(name, before.get(name, 0), others | set(given.values()))
        self._held[instance] = given
        return given

    def _fixed(self, name: str, port: int, others: set[int]) -> int:
        if port in others or not self._free(port):
            raise StartFailed(f"ports.{name}: port {port} is in use on this node", field=f"ports.{name}")
        return port

    def _dynamic(self, name: str, before: int, taken: set[int]) -> int:
        if self._first <= before <= self._last and before not in taken and self._free(before):
            return before
        size = self._last - self._first + 1
        begin = min(int(self._rng.uniform(0, size)), size - 1)
        for step in range(size):
            port = self._first + (begin + step) % size
            if port not in taken and self._free(port):
                return port
        raise StartFailed(
            f"ports.{name}: no free port from {self._first} to {self._last}", field=f"ports.{name}"
        )
