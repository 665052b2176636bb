"""One parsed request, the input of every handler, and the parameters that all endpoints share."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from store.embedded import acl, durations
from store.embedded.acl import Policy
from store.embedded.answers import HttpError
from store.embedded.state import State
from store.ports import Request

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
            wait = durations.parse(text) / 1e9 if text else 0.0
        except durations.InvalidDuration as error:
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
            raise HttpError(403, acl.DENIED)

    def need_sessions(self) -> None:
        """Raises HttpError 403 unless sessions may be changed."""
        if not self.policy.sessions:
            raise HttpError(403, acl.DENIED)


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
