"""Nodes: their commands, giving up absent agents (R21), and drains.

Each node is one claimed item. ``facts.py`` measures what this farm itself sees of absent agents,
``plan.py`` decides, ``kind.py`` writes the verdict for all farms and advances drains; the workers of pods
act on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

    from farmd.commands.bundled import Bundled
    from farmd.declaration import Act, Listed
    from farmd.work.kind import Kind


class NodeKind(KindOfWork):
    """Nodes."""

    family = "nodes"
    one, many, noun = "node", "nodes", "node"
    title = "Nodes: list, label, cordon, drain."
    first = "farmd agent"
    runbooks = (("FarmdNodeLost", "FarmdAgentDown"),)
    names = ("nodes", "agents")
    guarded = True
    health_matters = False  # that a node is lost has nothing to do with the health of pods elsewhere

    def runs(self) -> type[Kind]:
        from farmd.nodes.kind import Nodes

        return Nodes

    def group(self) -> click.Group:
        from farmd.cli.nouns import node

        return node

    def bundled(self) -> Bundled:
        from farmd.nodes.bundled import BUNDLED

        return BUNDLED

    def acts(self) -> Mapping[str, Act]:
        from farmd.nodes.commands import cordon, drain, uncordon, undrain

        return {"cordon": cordon, "uncordon": uncordon, "drain": drain, "undrain": undrain}

    def listed(self) -> Listed:
        from farmd.web.item_lists import NodeList

        return NodeList
