"""Intents: what a node must run. Workers write them, and the node's agent runs them.

An intent is always created with compare-and-set 0, so an instance on a node has only one owner.
"""

from __future__ import annotations

import sys

import msgspec


class Intent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One instance that the node must run: digest of the manifest and the owner's id.

    ``restart`` counts the restarts that were asked for; the agent acts on each rise once (R28).
    """

    manifest: str
    owner: str
    restart: int = 0


def shared(intent: Intent) -> Intent:
    """The same intent with interned strings, which saves memory."""
    return Intent(sys.intern(intent.manifest), sys.intern(intent.owner), intent.restart)
