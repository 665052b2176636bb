"""Replication controllers in bundles: a changed pod comes by a rollout, which the verdict follows."""

from __future__ import annotations

from farmd.commands.bundled import BundledNoun
from farmd.replication.commands import RC, ControllerSpec
from store.rcs import ReplicationController

BUNDLED: BundledNoun[ControllerSpec, ReplicationController] = BundledNoun(of=RC, order=2)
