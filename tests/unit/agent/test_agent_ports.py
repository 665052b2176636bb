"""Ports: from the range, kept, never twice, and what cannot be had is said."""

from __future__ import annotations

import random
import socket

import pytest

from farmd.agent.errors import StartFailed
from farmd.agent.ports import PortRange, bindable
from store.manifests import Manifest, Port


def manifest(**ports: int) -> Manifest:
    return Manifest(id="web", command=["x"], ports={name: Port(port) for name, port in ports.items()})


def test_dynamic_ports_are_kept_across_restarts_and_never_given_twice() -> None:
    ports = PortRange(100, 103, random.Random(1), free=lambda *_: True)
    first = ports.assign("a", manifest(http=0, admin=0))
    second = ports.assign("b", manifest(http=0, admin=0))
    assert len({*first.values(), *second.values()}) == 4
    assert ports.assign("a", manifest(http=0, admin=0)) == first
    with pytest.raises(StartFailed, match=r"ports\.http: no free port from 100 to 103"):
        ports.assign("c", manifest(http=0))
    ports.release("b")
    assert ports.assign("c", manifest(http=0))["http"] in second.values()


def test_a_kept_port_that_was_taken_meanwhile_is_given_up() -> None:
    taken: set[int] = set()
    ports = PortRange(100, 110, random.Random(1), free=lambda port, _: port not in taken)
    before = ports.assign("a", manifest(http=0))["http"]
    taken.add(before)
    assert ports.assign("a", manifest(http=0))["http"] != before


def test_ports_that_an_earlier_agent_gave_are_remembered() -> None:
    ports = PortRange(100, 101, random.Random(1), free=lambda *_: True)
    ports.remember("a", {"http": 100})
    assert ports.assign("b", manifest(http=0)) == {"http": 101}
    assert ports.assign("a", manifest(http=0)) == {"http": 100}


def test_a_fixed_port_in_use_is_a_clear_reason() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not bindable(port)
        ports = PortRange(100, 101, random.Random(1))
        with pytest.raises(StartFailed, match=rf"ports\.http: port {port}/tcp is in use on this node"):
            ports.assign("a", manifest(http=port))


@pytest.mark.parametrize(("kind", "protocol"), [(socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")])
def test_a_port_is_a_number_of_one_protocol(kind: socket.SocketKind, protocol: str) -> None:
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", 0))
        if protocol == "tcp":
            other.listen()
        number = other.getsockname()[1]
        taken = {each for each in ("tcp", "udp") if not bindable(number, Port(protocol=each))}  # type: ignore[arg-type]
        assert taken == {protocol}
        elsewhere = Port(protocol=protocol, host_ip="127.0.0.2")  # type: ignore[arg-type]
        assert bindable(number, elsewhere)
        assert not bindable(number, Port(protocol=protocol, host_ip="127.0.0.1"))  # type: ignore[arg-type]


def test_two_instances_have_one_number_in_two_protocols() -> None:
    ports = PortRange(100, 101, random.Random(1), free=lambda *_: True)
    ports.assign("a", manifest(dns=53))
    udp = Manifest(id="web", command=["x"], ports={"dns": Port(53, protocol="udp")})
    assert ports.assign("b", udp) == {"dns": 53}
    ports.remember("a", {"dns": 53})  # adopted: nobody has told its protocol yet
    with pytest.raises(StartFailed, match=r"ports\.dns: port 53/udp is in use on this node"):
        ports.assign("b", udp)


def test_two_instances_cannot_have_one_fixed_port() -> None:
    ports = PortRange(100, 101, random.Random(1), free=lambda *_: True)
    ports.assign("a", manifest(http=80))
    with pytest.raises(StartFailed):
        ports.assign("b", manifest(http=80))
    assert ports.assign("a", manifest(http=80)) == {"http": 80}


def test_a_dynamic_port_avoids_the_fixed_one_of_the_same_pod() -> None:
    ports = PortRange(100, 101, random.Random(1), free=lambda *_: True)
    assert ports.assign("a", manifest(http=0, admin=100)) == {"admin": 100, "http": 101}
