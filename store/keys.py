"""Every key path of farmd. No other module builds or parses a key.

All keys have one prefix, so one ACL rule covers them. Ids are random hex, so trees that are keyed by
ids split into 16 shards by the first digit; ``reality`` is keyed by node names and has the first hex
digit of the name's blake2b in front (R23). A watched prefix holds a sentinel ``<prefix>.present``
with the cluster id (R20); ``is_sentinel`` tells it from a record. ``store.families`` lists the
families and the trees that are watched.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from dataclasses import dataclass

from store.errors import refuse
from store.mistakes import shown

HEX_DIGITS = "0123456789abcdef"
SENTINEL = ".present"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SEGMENT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_INSTANCE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?(~[0-9]{1,9})?")


def _checked(pattern: re.Pattern[str], field: str, value: str, expected: str) -> str:
    # A name with the ending of a sentinel would be taken for one.
    if not pattern.fullmatch(value) or ".." in value or value.endswith(SENTINEL):
        refuse(field, shown(value), expected)
    return value


def valid_name(value: str, field: str = "name") -> str:
    """Return a name that people give: at most 63 of ``[a-z0-9-]``.

    Raises:
        InputInvalid: anything else.
    """
    return _checked(_NAME, field, value, "1 to 63 of a-z, 0-9 and '-', not at the ends")


def valid_segment(value: str, field: str) -> str:
    """Return a node name or id that is safe as one part of a key: no separator, no ``..``.

    Raises:
        InputInvalid: anything else.
    """
    return _checked(_SEGMENT, field, value, "1 to 128 of letters, digits, '.', '_' and '-', no '..'")


def valid_instance(value: str) -> str:
    """Return an instance name: a pod id, or ``<pod id>~<n>`` if a node may have several.

    Raises:
        InputInvalid: anything else.
    """
    return _checked(_INSTANCE, "instance", value, "a pod id, or a pod id with '~' and a number")


@functools.lru_cache(maxsize=16_384)
def name_shard(name: str) -> str:
    """The first hex digit of the name's blake2b: the shard of a tree that is keyed by names.

    Kept, because a farm looks up each pod of a large owner in each turn, and the digest is half of that.
    """
    return hashlib.blake2b(name.encode(), digest_size=1).hexdigest()[0]


def is_sentinel(key: str) -> bool:
    """Whether a key is a sentinel and not a record."""
    return key.endswith(SENTINEL)


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds all paths under one prefix, which ends in a slash."""

    prefix: str = "farmd/"

    # -- the cluster ---------------------------------------------------------------------------
    @property
    def cluster(self) -> str:
        """Cluster id, written once."""
        return f"{self.prefix}meta/cluster"

    @property
    def schema(self) -> str:
        """Schema version written, and the oldest version allowed."""
        return f"{self.prefix}meta/schema"

    def other_cluster(self, name: str) -> str:
        """Which cluster of Kubernetes a name stands for."""
        return f"{self.prefix}meta/kubernetes/{name}"

    def tree(self, family: str) -> str:
        """The prefix of a whole family, with its slash."""
        return f"{self.prefix}{family}/"

    def sentinel(self, watched_prefix: str) -> str:
        """The sentinel of a watched prefix."""
        return watched_prefix + SENTINEL

    # -- what people ask for -------------------------------------------------------------------
    def manifest(self, sha: str) -> str:
        """A pod manifest by its digest."""
        return f"{self.prefix}manifests/{sha}"

    def signatures(self, sha: str) -> str:
        """The prefix of all signatures of a manifest."""
        return f"{self.prefix}signatures/{sha}/"

    def signature(self, sha: str, key_id: str, owner: str) -> str:
        """The signature of one key for an owner, ``<family>/<name>``, of a manifest."""
        return f"{self.signatures(sha)}{key_id}/{owner}"

    @property
    def revocations(self) -> str:
        """The prefix of all revocations of signatures."""
        return f"{self.prefix}signatures/revoked/"

    def revocation(self, sha: str, owner: str) -> str:
        """The revocation of the signatures over a manifest for an owner, ``<family>/<name>``."""
        return f"{self.revocations}{owner}/{sha}"

    def name(self, family: str, name: str) -> str:
        """Holds the id of the record with this name, which makes names unique."""
        return f"{self.prefix}names/{family}/{name}"

    def record(self, family: str, item_id: str) -> str:
        """A record of a family whose keys have one part, such as ``rcs``."""
        return f"{self.prefix}{family}/{item_id}"

    def node(self, node: str) -> str:
        """A node's record, which people write."""
        return f"{self.prefix}nodes/{node}"

    def reserved(self, node: str) -> str:
        """Resources reserved on a node."""
        return f"{self.prefix}reserved/{node}"

    def trackers(self, app: str) -> str:
        """The prefix of all revisions of an app."""
        return f"{self.prefix}trackers/{app}/"

    def tracker(self, app: str, revision: int) -> str:
        """One revision of an app."""
        return f"{self.trackers(app)}{revision:08}"

    # -- pods ----------------------------------------------------------------------------------
    def pods(self, owner: str) -> str:
        """The prefix of one owner's pods."""
        return f"{self.prefix}pods/{owner}/"

    def pod(self, owner: str, node: str, instance: str) -> str:
        """One pod of an owner."""
        return f"{self.prefix}pods/{owner}/{node}/{instance}"

    def pod_parts(self, key: str) -> tuple[str, str, str]:
        """(owner, node, instance) of a pod's key."""
        owner, node, instance = map(sys.intern, key[len(self.prefix) + 5 :].split("/"))
        return owner, node, instance

    def intents(self, node: str) -> str:
        """The prefix of what one node must run."""
        return f"{self.prefix}intent/{node}/"

    def intent(self, node: str, instance: str) -> str:
        """One instance that a node must run."""
        return f"{self.prefix}intent/{node}/{instance}"

    def intent_parts(self, key: str) -> tuple[str, str]:
        """(node, instance) of an intent's key."""
        node, instance = map(sys.intern, key[len(self.prefix) + 7 :].split("/"))
        return node, instance

    def realities(self, node: str) -> str:
        """The prefix of what one node runs."""
        return f"{self.prefix}reality/{name_shard(node)}/{node}/"

    def reality(self, node: str, instance: str) -> str:
        """One instance that a node runs."""
        return f"{self.prefix}reality/{name_shard(node)}/{node}/{instance}"

    def reality_parts(self, key: str) -> tuple[str, str]:
        """(node, instance) of a reality's key."""
        _, node, instance = key[len(self.prefix) + 8 :].split("/")
        return node, instance

    def accesses(self, purpose: str, node: str = "") -> str:
        """The prefix of the one-time keys for one purpose at a node's agent, or at all agents."""
        return f"{self.prefix}access/{purpose}/{node}/" if node else f"{self.prefix}access/{purpose}/"

    def access(self, purpose: str, node: str, ident: str) -> str:
        """A one-time key, by its hash."""
        return f"{self.accesses(purpose, node)}{ident}"

    # -- processes -----------------------------------------------------------------------------
    def agent(self, node: str) -> str:
        """Presence of a node's agent, held by its session."""
        return f"{self.prefix}agents/{node}"

    def farm(self, farm: str) -> str:
        """Presence of a farm, held by its session."""
        return f"{self.prefix}farms/{farm}"

    def lock(self, kind: str, item_id: str) -> str:
        """Ownership of an item; the key exists only while it is held."""
        return f"{self.prefix}locks/{kind}/{item_id}"

    def mutation_lock(self, kind: str, item_id: str) -> str:
        """The right to change an item's record."""
        return f"{self.prefix}locks/{kind}/{item_id}/mutation"

    def lock_parts(self, key: str) -> tuple[str, str, bool]:
        """(kind, id, whether it is the mutation lock) of a lock's key; all empty for any other key."""
        parts = key[len(self.prefix) + 6 :].split("/")
        mutation = len(parts) == 3 and parts[2] == "mutation"
        if not (len(parts) == 2 or mutation) or not all(parts):
            return "", "", False
        return sys.intern(parts[0]), sys.intern(parts[1]), mutation

    def work(self, kind: str, item_id: str) -> str:
        """A worker's durable state."""
        return f"{self.prefix}work/{kind}/{item_id}"

    def history(self, name: str, item_id: str) -> str:
        """What is over of the object of that name."""
        return f"{self.prefix}history/{name}/{item_id}"

    def status(self, kind: str, item_id: str) -> str:
        """The status of an item, for people."""
        return f"{self.prefix}status/{kind}/{item_id}"

    def failsafe(self, kind: str) -> str:
        """The freeze of a kind of work."""
        return f"{self.prefix}failsafe/{kind}"

    # -- audit ---------------------------------------------------------------------------------
    def audit_hour(self, hour: str) -> str:
        """The prefix of one UTC hour, ``2026-11-20T17``."""
        return f"{self.prefix}audit/{hour}/"

    def audit(self, hour: str, record_id: str) -> str:
        """One audit record; ids of one hour sort by time."""
        return f"{self.prefix}audit/{hour}/{record_id}"

    def is_audit_record(self, key: str) -> bool:
        """Whether a key under ``audit/`` is a record; parts of checkpoints are one level deeper."""
        parts = key[len(self.prefix) + 6 :].split("/")
        return len(parts) == 2 and all(parts)

    @property
    def checkpoint(self) -> str:
        """The newest complete checkpoint of the pods tree: the hour and id of its chunks."""
        return f"{self.prefix}audit/checkpoint"

    def checkpoint_parts(self, hour: str, checkpoint_id: str) -> str:
        """The prefix of one checkpoint's parts; they are deleted with their hour at the latest."""
        return f"{self.prefix}audit/{hour}/checkpoint/{checkpoint_id}/"

    def checkpoint_begin(self, hour: str, checkpoint_id: str) -> str:
        """Written before the pods are read: its ModifyIndex is the checkpoint's."""
        return f"{self.checkpoint_parts(hour, checkpoint_id)}begin"

    def checkpoint_chunk(self, hour: str, checkpoint_id: str, number: int) -> str:
        """One chunk of a checkpoint, from 0."""
        return f"{self.checkpoint_parts(hour, checkpoint_id)}{number:05}"

    def last_part(self, key: str) -> str:
        """The id or name at the end of a key."""
        return sys.intern(key.rsplit("/", 1)[1])
