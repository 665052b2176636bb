"""Shows the fleet to people: owners of pods, pods, nodes and farms, joined from what is stored.

It only reads, and no decision uses these rows. A record that does not decode is listed as broken beside the
others and hides none of them.
"""

from farmd.overview.members import farms
from farmd.overview.nodes import NodeRow, Nodes, node_row, node_state, nodes
from farmd.overview.owners import Row, Rows, owners, records_of, row, row_of, rows, titled, titled_or_not
from farmd.overview.pod_row import PodRow, pod_row
from farmd.overview.pods import Pods, lost, pods, pods_of_node, states
from farmd.overview.processes import FarmRow, farm_rows, freezes

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
