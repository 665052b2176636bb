"""One parsed request, the input of every handler, and the parameters that all endpoints share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from store.embedded import encoding
from store.embedded.answers import HttpError
from store.embedded.state import State
from store.ports import Request

# The part of Consul's access control that tests need: it answers denied requests as Consul does.
#
# A policy maps key prefixes to access rights; the longest prefix decides, and a key without a rule is
# denied. Without policies everything is allowed, as in Consul with ACLs off.

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


DATACENTER = "dc1"
DEFAULT_WAIT = 300.0
MAX_WAIT = 600.0
_UINT64 = 2**64


@dataclass(frozen=True, slots=True)
class Identity:
    """The names, version and address that the server reports about itself."""

    node: str
    node_id: str
    version: str
    address: str


@dataclass(frozen=True, slots=True)
class Blocking:
    """A wait of at most ``wait`` seconds for an index above ``index``; index 0 never waits."""

    index: int
    wait: float


@dataclass(frozen=True, slots=True)
class Call:
    """A request with the server's state; ``rest`` is the path after the route."""

    state: State
    identity: Identity
    request: Request
    policy: Policy
    rest: str
    params: dict[str, str]
    length: int
    new_session_id: str

    def query(self) -> str:
        """The parameters sorted by name, as Consul repeats them in its errors."""
        return urlencode(sorted(self.params.items()))

    def options(self) -> Blocking:
        """Check the common parameters as Consul does.

        Raises:
            HttpError: 400 or 500, with Consul's text.
        """
        blocking = Blocking(self._index(), self._wait())
        if "stale" in self.params and "consistent" in self.params:
            raise HttpError(400, "Cannot specify ?stale with ?consistent, conflicting semantics.")
        if self.params.get("dc", DATACENTER) not in {"", DATACENTER}:
            raise HttpError(500, "No path to datacenter")
        return blocking

    def _wait(self) -> float:
        text = self.params.get("wait", "")
        try:
            wait = encoding.parse(text) / 1e9 if text else 0.0
        except encoding.InvalidDuration as error:
            raise HttpError(400, "Invalid wait time") from error
        return min(wait, MAX_WAIT) if wait > 0 else DEFAULT_WAIT

    def _index(self) -> int:
        text = self.params.get("index", "")
        try:
            return uint(text) if text else 0
        except HttpError as error:
            raise HttpError(400, "Invalid index") from error

    def need_key_read(self, key: str) -> None:
        """Raises HttpError 403 unless ``key`` may be read."""
        if not self.policy.may_read(key):
            raise HttpError(403, DENIED)

    def need_sessions(self) -> None:
        """Raises HttpError 403 unless sessions may be changed."""
        if not self.policy.sessions:
            raise HttpError(403, DENIED)


def uint(text: str) -> int:
    """An unsigned 64-bit number in decimal.

    Raises:
        HttpError: 500 with the text of Go's ``strconv``.
    """
    if not (text.isascii() and text.isdigit()):
        raise HttpError(500, f'strconv.ParseUint: parsing "{text}": invalid syntax')
    if int(text) >= _UINT64:
        raise HttpError(500, f'strconv.ParseUint: parsing "{text}": value out of range')
    return int(text)
