"""Intents: what a node must run. Workers write them, and the node's agent runs them.

An intent is always created with compare-and-set 0, so an instance on a node has only one owner.
"""

from __future__ import annotations

import sys

import msgspec


class Intent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One instance that the node must run: digest of the manifest and the owner's id.

    ``restart`` counts the restarts that were asked for; the agent acts on each rise once (R28).
    ``vars`` are variables for the next start's environment. ``hold``: the agent prepares the first start,
    chooses the ports, and starts nothing before ``hold`` is off. ``peers`` is the digest of a document that
    names the instance's peers; empty without one (R29).
    """

    manifest: str
    owner: str
    restart: int = 0
    vars: dict[str, str] = {}
    hold: bool = False
    peers: str = ""


_NO_VARS: dict[str, str] = {}


def shared(intent: Intent) -> Intent:
    """The same intent with interned strings, which saves memory."""
    manifest, owner = sys.intern(intent.manifest), sys.intern(intent.owner)
    return Intent(
        manifest, owner, intent.restart, intent.vars or _NO_VARS, intent.hold, sys.intern(intent.peers)
    )
