"""The part of Consul's access control that tests need: it answers denied requests as Consul does.

A policy maps key prefixes to access rights; the longest prefix decides, and a key without a rule is
denied. Without policies everything is allowed, as in Consul with ACLs off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DENIED = "Permission denied"
NOT_FOUND = "ACL not found"


@dataclass(frozen=True, slots=True)
class Policy:
    """The access rights of one token.

    Attributes:
        keys: key prefix to "read", "write" or "deny".
        sessions: whether the token may create, renew and destroy sessions.
        catalog: whether the token may write into the catalogue, and read there in transactions.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    sessions: bool = False
    catalog: bool = False

    def may_read(self, key: str) -> bool:
        """Whether the value of ``key`` may be read."""
        return self._rule(key) in {"read", "write"}

    def may_write(self, key: str) -> bool:
        """Whether ``key`` may be changed."""
        return self._rule(key) == "write"

    def may_write_tree(self, prefix: str) -> bool:
        """Whether everything under ``prefix`` may be deleted: every rule below must allow it."""
        below = [rule for key, rule in self.keys.items() if key.startswith(prefix)]
        return self.may_write(prefix) and all(rule == "write" for rule in below)

    def _rule(self, key: str) -> str:
        fitting = [prefix for prefix in self.keys if key.startswith(prefix)]
        return self.keys[max(fitting, key=len)] if fitting else "deny"


EVERYTHING = Policy(keys={"": "write"}, sessions=True, catalog=True)
ANONYMOUS = Policy()
