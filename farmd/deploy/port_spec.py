"""Ports as text: ``[hostname:][published:]container[/protocol]`` and ``[address:]published:container@host``.

The text is uncloud's (``pkg/api/port.go``), and stands in ``x-ports`` and in flags. Whether a service may
have such a port is another question (``farmd.deploy.validation``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import NoReturn

from farmd.deploy.model import PortSpec
from store.errors import InputInvalid, refuse

PROTOCOLS = ("tcp", "udp", "http", "https")
MODES = ("ingress", "host")


def parse(text: str) -> PortSpec:
    """Read one port.

    Raises:
        InputInvalid: naming what was found and what was expected.
    """
    rest, mode = _mode(text)
    rest, protocol = _protocol(rest)
    *before, last = _parts(rest)
    hostname = address = ""
    published = 0
    if before and _number(before[-1]) is not None:
        published = _number(before.pop()) or 0
    elif len(before) == 1 and mode == "ingress" and not before[0].lstrip("-").isdigit():
        hostname = before.pop()
    elif before:
        _refuse("published port", before[-1], "1 to 65535")
    if before:
        address = before[0]
    if mode == "ingress" and address:
        hostname, address = address, ""
    container = _number(last)
    if container is None:
        _refuse("container port", last, "1 to 65535")
    prefix = address if "/" in address else ""
    port = PortSpec(
        container=container,
        published=published,
        protocol=protocol or ("https" if hostname else "tcp"),
        mode=mode,
        hostname=hostname,
        host_ip="" if prefix else address,
        host_prefix=prefix,
    )
    validate(port)
    return port


def validate(port: PortSpec) -> None:
    """Check one port by itself.

    Raises:
        InputInvalid: naming the part that cannot be.
    """
    if not 0 < port.container <= 65535:
        _refuse("container port", port.container, "1 to 65535")
    if not 0 <= port.published <= 65535:
        _refuse("published port", port.published, "1 to 65535")
    if port.protocol not in PROTOCOLS:
        _refuse("protocol", port.protocol, f"one of {', '.join(PROTOCOLS)}")
    if port.mode == "ingress":
        _validate_ingress(port)
    elif port.mode == "host":
        _validate_host(port)
    else:
        _refuse("mode", port.mode, f"one of {', '.join(MODES)}")


def _validate_ingress(port: PortSpec) -> None:
    if port.host_ip or port.host_prefix:
        _refuse("host address", port.host_ip or port.host_prefix, "none without @host")
    if port.hostname and port.protocol not in ("http", "https"):
        _refuse("hostname", port.hostname, f"none for {port.protocol}")
    if port.hostname and not _is_hostname(port.hostname):
        _refuse("hostname", port.hostname, "a name with a dot")


def _validate_host(port: PortSpec) -> None:
    if port.hostname:
        _refuse("hostname", port.hostname, "none with @host")
    if not port.published:
        _refuse("published port", 0, "1 to 65535 with @host")
    if port.protocol not in ("tcp", "udp"):
        _refuse("protocol", port.protocol, "tcp or udp with @host")
    if port.host_ip and port.host_prefix:
        _refuse("host address", port.host_prefix, "an address or a network, not both")
    try:
        if port.host_ip:
            ipaddress.ip_address(port.host_ip)
        if port.host_prefix:
            ipaddress.ip_interface(port.host_prefix)
    except ValueError:
        _refuse("host address", port.host_ip or port.host_prefix, "an IP address or network")


def text(port: PortSpec) -> str:
    """The canonical text: ``parse(text(port)) == port``."""
    parts = [port.hostname, _bracketed(port.host_ip or port.host_prefix), str(port.published or "")]
    head = ":".join([*filter(None, parts), str(port.container)])
    return f"{head}/{port.protocol}{'@host' if port.mode == 'host' else ''}"


def conflicts(one: PortSpec, other: PortSpec) -> bool:
    """Whether no machine can have both. A port for a network counts as one for all addresses."""
    if not (one.mode == other.mode == "host"):
        return False
    if one.published != other.published or one.protocol != other.protocol:
        return False
    return not one.host_ip or not other.host_ip or one.host_ip == other.host_ip


def conflicting(ports: Collection[PortSpec], others: Collection[PortSpec]) -> list[PortSpec]:
    """The ports that exclude one of the ``others``."""
    return [port for port in ports if any(conflicts(port, other) for other in others)]


def equal(ports: Collection[PortSpec], others: Collection[PortSpec]) -> bool:
    """Whether both are the same ports, in any order; ports that cannot be are equal to none."""
    try:
        for port in (*ports, *others):
            validate(port)
    except InputInvalid:
        return False
    return sorted(map(text, ports)) == sorted(map(text, others))


def _mode(given: str) -> tuple[str, str]:
    rest, sign, mode = given.partition("@")
    if sign and mode != "host":
        _refuse("mode", mode, "'host' behind the '@'")
    return rest, "host" if sign else "ingress"


def _protocol(given: str) -> tuple[str, str]:
    """The part behind the last slash, unless that slash is the one of a network."""
    rest, slash, protocol = given.rpartition("/")
    if not slash or ":" in protocol:
        return given, ""
    if protocol not in PROTOCOLS:
        _refuse("protocol", protocol, f"one of {', '.join(PROTOCOLS)}")
    return rest, protocol


def _parts(given: str) -> list[str]:
    """At most three parts: address or hostname, published port, container port."""
    if not given.startswith("["):
        parts = given.split(":")
        if len(parts) > 3:
            _refuse("host address", ":".join(parts[:-2]), "an IPv6 address in brackets")
        return parts
    address, bracket, rest = given[1:].partition("]")
    bits, _, ports = rest.partition(":")
    if not bracket or (bits and not bits.startswith("/")):
        _refuse("host address", given, "an IPv6 address in brackets, such as [::1]:80:8080@host")
    return [address + bits, *ports.split(":")][:4]


def _number(part: str) -> int | None:
    return int(part) if part.isascii() and part.isdigit() and int(part[:6]) <= 65535 else None


def _is_hostname(name: str) -> bool:
    return "." in name.strip(".") and not set(name) & set("/:[]@ \t")


def _bracketed(address: str) -> str:
    if ":" not in address:
        return address
    ip, slash, bits = address.partition("/")
    return f"[{ip}]{slash}{bits}"


def _refuse(what: str, found: object, expected: str) -> NoReturn:
    refuse(what, repr(found), expected)
