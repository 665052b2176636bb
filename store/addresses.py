"""Addresses that would give secrets away: as they are told to people, and those that nothing here asks.

Nothing asks on behalf of a record what gives a machine's own secrets away.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

# Of clouds whose metadata do not answer at a link-local address.
_METADATA = frozenset(
    map(ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
# The prefix of RFC 6052, by which a gateway reaches IPv4 addresses.
_NAT64 = IPv6Network("64:ff9b::/96")
HIDDEN = "[hidden]"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def told(address: str) -> str:
    """An address for people, good or not: without user, password and query, of which one may be a secret.

    Whatever stands in front of an ``@`` is hidden, because a password may contain any character.
    """
    found = _SCHEME.match(address)
    scheme = found[0] if found else ""
    if scheme == "unix://":
        return address
    place, question, query = address.removeprefix(scheme).partition("?")
    if "@" in query:
        return scheme + HIDDEN
    _, user, host = place.rpartition("@")
    return scheme + (HIDDEN + user if user else "") + host + (question + HIDDEN if question else "")


def refusal(text: str) -> str:
    """Why an IP address must not be asked; empty where it may be, or is a name.

    An IPv6 address that stands for an IPv4 address is judged as that.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        address = _embedded(address) or address
    if address in _METADATA:
        return f"{text} is an address of cloud metadata"
    if address.is_link_local or address.is_multicast:
        return f"{text} is a {'link-local' if address.is_link_local else 'multicast'} address"
    return ""


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address in a mapped, 6to4, NAT64 or compatible one."""
    if address in _NAT64 or (address.packed[:12] == bytes(12) and int(address) > 1):
        return IPv4Address(address.packed[12:])
    return address.ipv4_mapped or address.sixtofour
