"""The keys that an agent trusts: a file with one line ``name public-key owners nodes [bound]`` each.

``owners`` (``rcs/web-*,jobs/*``) and ``nodes`` (``edge-*``) are patterns with commas between. A person signs
only for owners that the line allows, and only nodes that it allows obey; with ``bound`` only signatures count
that name the cluster. The file grants; what no line grants
is refused, and a file that cannot be read or has a mistake grants nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from farmd.signing.keys import valid_public
from store.credentials import content, invalid
from store.errors import InputInvalid
from store.keys import valid_name
from store.mistakes import shown
from store.own_files import own_content

FIELD = "agent.trust"
BOUND = "bound"
MOST_KEYS = 1000
_PATTERNS = re.compile(r"[A-Za-z0-9._/*-]+(,[A-Za-z0-9._/*-]+)*")


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether an owner or a node is one of those that the patterns of a line are for."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Trusted(NamedTuple):
    """One line: a person's key, for whose pods and to which nodes it may deploy.

    ``bound``: its signatures count only where they name the cluster.
    """

    name: str
    key: str
    owners: tuple[str, ...]
    nodes: tuple[str, ...]
    bound: bool = False

    def may_deploy(self, owner: str) -> bool:
        """Whether the person signs for this owner, ``<family>/<name>``."""
        return fits(owner, self.owners)

    def may_reach(self, node: str) -> bool:
        """Whether a node obeys the person."""
        return fits(node, self.nodes)


Trust = Sequence[Trusted]
"""The lines of a file; a person may have several, with the same key or others."""


def read(path: str, *, own: bool = True) -> Trust:
    """The lines of a file. ``own`` is off for one that grants nothing here: a person's copy of a node's file.

    Raises:
        CredentialInvalid: the file cannot be read, others may change or replace it, or a line is wrong.
    """
    text = own_content(FIELD, path) if own else content(FIELD, path, may_be_empty=True)
    lines = enumerate(text.decode("utf-8", "replace").splitlines(), start=1)
    words = [(number, line.partition("#")[0].split()) for number, line in lines]
    keys = [(number, found) for number, found in words if found]
    if len(keys) > MOST_KEYS:
        raise invalid(f"{FIELD}: {path}", f"{len(keys)} keys", f"at most {MOST_KEYS}")
    return [_line(f"{FIELD}: {path}: line {number}", found) for number, found in keys]


def _line(where: str, words: list[str]) -> Trusted:
    if len(words) not in (4, 5):
        raise invalid(where, f"{len(words)} words", "name, public key, owners and nodes")
    name, key, owners, nodes, *more = words
    if more not in ([], [BOUND]):
        raise invalid(where, shown(more[0]), f"{BOUND} or nothing behind the nodes")
    try:
        valid_name(name)
        valid_public(key)
    except InputInvalid as error:
        raise invalid(where, shown(name), error.message) from error
    for patterns in (owners, nodes):
        if not _PATTERNS.fullmatch(patterns):
            raise invalid(where, shown(patterns), "patterns such as FAMILY/web-*,FAMILY/*")
    return Trusted(name, key, tuple(owners.split(",")), tuple(nodes.split(",")), bool(more))
