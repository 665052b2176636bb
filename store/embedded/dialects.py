"""What differs between the versions of Consul that the embedded server imitates: limits, texts and an index.

All others answer alike, as far as tests compare them; both were measured against the real servers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """The answers of one version; the defaults are those of Consul 1.8.

    Attributes:
        operations: how many a transaction may have.
        write_refused: what stands before the reason of a refused plain write.
        session_refused: what stands before the reason where a session's node or check is missing.
        session_fields: what stands before a field of a session that does not decode.
        ids_are_uuids: whether a lock for a text that is no UUID is refused for that.
        read_index: the index of a transaction that only reads.
        service_unnamed: why an instance with an id and without a name is refused.
        later: whether the catalogue has the fields and the indexes of later versions.
        read_more: whether its answer has three fields more, and tells whether a read was tried.
    """

    operations: int = 64
    write_refused: str = ""
    session_refused: str = ""
    session_fields: str = ""
    ids_are_uuids: bool = True
    read_index: int = 0
    service_unnamed: str = "Must provide service name with ID"
    later: bool = False
    read_more: bool = False


CONSUL_1_8 = Dialect()
CONSUL_1_14 = Dialect(
    operations=128,
    write_refused="raft apply failed: ",
    session_refused="apply failed: ",
    session_fields=".Alias",
    ids_are_uuids=False,
    read_index=1,
    service_unnamed="Must provide service name (Service.Service) when service ID is provided",
    later=True,
    read_more=True,
)


def dialect(version: str) -> Dialect:
    """The dialect of a version such as ``1.14.11``: that of 1.14 from there on."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return CONSUL_1_8 if (major, minor) < (1, 14) else CONSUL_1_14
