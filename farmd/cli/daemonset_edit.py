"""``farmctl daemonset create | update | enable | disable | delete``."""

from __future__ import annotations

from farmd.cli import owner_edit
from farmd.cli.names import objects
from farmd.daemonset import commands, waiting
from farmd.daemonset.spec import parse_file
from store.daemonsets import KIND

_FAMILY = owner_edit.Family(
    noun="daemonset",
    one="daemon set",
    many="daemon sets",
    pace="as min_health and rate allow",
    complete=objects(KIND),
    commands=commands,
    parse=parse_file,
    convergence=waiting.convergence,
    deletion=waiting.deletion,
)

create = owner_edit.creating(_FAMILY)
update = owner_edit.updating(_FAMILY)
enable = owner_edit.enabling(_FAMILY)
disable = owner_edit.disabling(_FAMILY)
delete = owner_edit.deleting(_FAMILY)
