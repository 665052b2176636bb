"""Shows the fleet to people: owners of pods, pods, nodes and farms, joined from what is stored.

It only reads, and no decision uses these rows. A record that does not decode is listed as broken beside the
others and hides none of them.
"""

from farmd.overview.nodes import FarmRow, NodeRow, Nodes, farm_rows, freezes, node_row, node_state, nodes
from farmd.overview.owners import (
    Row,
    Rows,
    farms,
    owners,
    records_of,
    row,
    row_of,
    rows,
    titled,
    titled_or_not,
)
from farmd.overview.pods import PodRow, Pods, lost, pod_row, pods, pods_of_node, states

__all__ = [
    "FarmRow",
    "NodeRow",
    "Nodes",
    "PodRow",
    "Pods",
    "Row",
    "Rows",
    "farm_rows",
    "farms",
    "freezes",
    "lost",
    "node_row",
    "node_state",
    "nodes",
    "owners",
    "pod_row",
    "pods",
    "pods_of_node",
    "records_of",
    "row",
    "row_of",
    "rows",
    "states",
    "titled",
    "titled_or_not",
]
