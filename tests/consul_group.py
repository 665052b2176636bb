"""Several servers of Consul that are one cluster, on loopback addresses of their own; and what divides them.

``isolated`` cuts one server off from the others and not from those who ask it: it changes the packet filter,
so it needs root, best in a network namespace of its own.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self

from tests.proxy import Proxy
from tests.servers import ConsulServer, leader_of


class ConsulGroup:
    """Durable servers, as a context manager; ``up`` are those that run and are not stopped."""

    def __init__(self, count: int = 3, config: dict[str, Any] | None = None) -> None:
        self.peers: list[str] = []
        self.servers = [
            ConsulServer(
                dev=False,
                http_max_conns_per_client=10_000,
                node=f"server-{number}",
                host=f"127.0.0.{number + 1}",
                peers=self.peers,
                config=config,
            )
            for number in range(1, count + 1)
        ]
        self.peers += [f"{each.host}:{each.serf_port}" for each in self.servers]
        self.up = list(self.servers)

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.launch()
            with ThreadPoolExecutor() as pool:
                list(pool.map(ConsulServer.await_ready, self.servers))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()

    @property
    def leader(self) -> ConsulServer | None:
        """Whom a majority of those that run names as the leader."""
        named = [said for server in self.up if (said := leader_of(server.address))]
        for server in self.servers:
            if 2 * named.count(f"{server.host}:{server.server_port}") > len(self.servers):
                return server
        return None

    @property
    def followers(self) -> list[ConsulServer]:
        """The servers beside the leader."""
        leader = self.leader
        return [server for server in self.servers if server is not leader]

    def kill(self, server: ConsulServer) -> None:
        """SIGKILL."""
        self.up.remove(server)
        server.kill()

    def stop(self, server: ConsulServer) -> None:
        """SIGTERM."""
        self.up.remove(server)
        server.stop()

    def start(self, server: ConsulServer) -> None:
        """Start it again; returns when it knows a leader."""
        server.start()
        self.up.append(server)

    def pause(self, server: ConsulServer) -> None:
        """SIGSTOP: it answers nothing, its connections stay open."""
        self.up.remove(server)
        server.pause()

    def resume(self, server: ConsulServer) -> None:
        """SIGCONT."""
        server.resume()
        self.up.append(server)

    @contextmanager
    def isolated(self, server: ConsulServer) -> Iterator[None]:
        """Inside this context no other server hears it, and it hears none; those who ask it do."""
        others = [other for other in self.servers if other is not server]
        rules = [["-s", server.host, "-d", other.host] for other in others]
        rules += [["-s", other.host, "-d", server.host] for other in others]
        rules.append(["-p", "tcp", "-d", server.host, "--dport", str(server.serf_port)])
        for rule in rules:
            subprocess.run(["iptables", "-I", "INPUT", *rule, "-j", "DROP"], check=True)
        self.up.remove(server)
        try:
            yield
        finally:
            self.up.append(server)
            for rule in rules:
                subprocess.run(["iptables", "-D", "INPUT", *rule, "-j", "DROP"], check=True)


class Balancer(Proxy):
    """A load balancer: each connection, or each request, goes to the next one of ``servers``."""

    def __init__(self, servers: Sequence[ConsulServer], *, each_request: bool = False) -> None:
        self.servers, self._turns = servers, itertools.count()
        super().__init__("")
        self.each_request = each_request

    @property
    def upstream(self) -> str:
        """The server of the next connection."""
        servers = list(self.servers) or [None]
        server = servers[next(self._turns) % len(servers)]
        return "127.0.0.1:1" if server is None else server.address

    @upstream.setter
    def upstream(self, _: str) -> None:
        """The servers say it."""
