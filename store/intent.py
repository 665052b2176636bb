"""Intent: what a node must run. Written by workers, obeyed by the node's agent.

Creating an intent is always compare-and-set 0, which is the whole rule of uniqueness: one owner for
an instance on a node.
"""

from __future__ import annotations

import sys

import msgspec


class Intent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One instance that the node must run: digest of the manifest and the owner's id."""

    manifest: str
    owner: str


def shared(intent: Intent) -> Intent:
    """The same intent with its strings shared by all that say the same."""
    return Intent(sys.intern(intent.manifest), sys.intern(intent.owner))
