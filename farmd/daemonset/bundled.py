"""Daemon sets in bundles: a changed pod comes in place, at the daemon set's own pace."""

from __future__ import annotations

from farmd.commands.bundled import BundledNoun
from farmd.daemonset.commands import DAEMON_SET, DaemonSetSpec
from store.daemonsets import DaemonSet

BUNDLED: BundledNoun[DaemonSetSpec, DaemonSet] = BundledNoun(of=DAEMON_SET, order=2)
