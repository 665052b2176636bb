"""Nodes: their commands, giving up absent agents (R21), and drains.

Each node is one claimed item. ``facts.py`` measures what this farm itself sees of absent agents,
``plan.py`` decides, ``kind.py`` writes the verdict for all farms and advances drains; the workers of pods
act on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.cli.nouns
    import farmd.nodes.bundled
    import farmd.nodes.commands
    import farmd.nodes.kind
    import farmd.web.item_lists
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="nodes",
    one="node",
    many="nodes",
    noun="node",
    title="Nodes: list, label, cordon, drain.",
    first="farmd agent",
    runbooks=(("FarmdNodeLost", "FarmdAgentDown"),),
    names=("nodes", "agents"),
    guarded=True,
    health_matters=False,  # that a node is lost has nothing to do with the health of pods elsewhere
    runs=lambda: farmd.nodes.kind.Nodes,
    group=lambda: farmd.cli.nouns.node,
    bundled=lambda: farmd.nodes.bundled.BUNDLED,
    acts=lambda: {
        "cordon": farmd.nodes.commands.cordon,
        "uncordon": farmd.nodes.commands.uncordon,
        "drain": farmd.nodes.commands.drain,
        "undrain": farmd.nodes.commands.undrain,
    },
    listed=lambda: farmd.web.item_lists.NodeList,
)
