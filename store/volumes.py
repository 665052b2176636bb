"""Named volumes: which node has which is noted in the nodes' records, and one key a name keeps makers apart.

Every transaction that makes a volume also writes ``names/volumes/<name>``: with CAS 0 where the maker saw the
volume on no node, else with the index that was read before the nodes were. So two that begin at the same time
never make one volume, with two different contents, on two nodes.
"""

from __future__ import annotations

import re

import msgspec

from store import codec, operations
from store.errors import Conflict, refuse
from store.keys import Keys
from store.nodes import Node, NodeVolume
from store.operations import Operation

KIND = "volumes"
NOUN = "volume"
MOST = 200
LOCAL = "local"
"""The driver of a volume of which none is named."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


def is_volume_name(name: str) -> bool:
    """Whether a volume may have this name, for every engine and as a label of its node."""
    return _NAME.fullmatch(name) is not None


def valid_volume_name(name: str) -> str:
    """The name, if a volume may have it.

    Raises:
        InputInvalid: it may not.
    """
    if not is_volume_name(name):
        refuse("name", repr(name), "1 to 63 of letters, digits, '.', '_' and '-'")
    return name


def claim(keys: Keys, name: str, node: str, index: int) -> Operation:
    """The write by which only one of several makers makes the volume, here on a node.

    ``index`` is 0 where the volume was on no node, else that of the name's key, read before the nodes were.
    """
    return operations.cas(keys.name(KIND, name), codec.encode(node), index)


def with_volume(node: Node, name: str, volume: NodeVolume) -> Node:
    """The node's record with one more volume.

    Raises:
        Conflict: it has as many as a node may have.
    """
    if len(node.volumes) >= MOST and name not in node.volumes:
        raise Conflict(f"volumes: the node has {len(node.volumes)}, expected at most {MOST}")
    return msgspec.structs.replace(node, volumes={**node.volumes, name: volume})
