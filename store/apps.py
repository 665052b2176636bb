"""Apps: bundles of objects that farms make, keep and collect as one; the records and what they hold.

``apps/<name>`` says which revision is wanted. ``trackers/<name>/<revision>`` holds that revision's documents
and never changes. What must never break: a tracker is written before the revision is wanted, so whatever an
app may have made is named by one of its trackers.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from store import codec, operations
from store.entry import Stored
from store.errors import NotFound, RecordInvalid, TooLarge, refuse
from store.keys import Keys
from store.named import records
from store.operations import Operation
from store.ports import KeyReader
from store.quantities import Seconds
from store.status import ItemStatus
from store.times import Time

KIND = "apps"
TRACKERS = "trackers"
API_VERSION = "farmd/v1"  # of farmd's own objects; every other one is Kubernetes'
MAX_ENTRIES = 2000
MAX_PACKED_BYTES = 256 * 1024
MAX_BYTES = 32 * 1024 * 1024
MAX_MEMORY = 64 * 1024 * 1024
XZ = b"\xfd7zXZ"
MAX_WAITS = 20
MAX_ADOPTED = 100
ALL = "*"


class TypedReference(msgspec.Struct, frozen=True, order=True, omit_defaults=True, kw_only=True, dict=True):
    """An object as its file names it; ``namespace`` is empty for farmd's own and for cluster-scoped ones."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    kind: str
    namespace: str = ""
    name: str

    @property
    def own(self) -> bool:
        """Whether it is a record of farmd's own."""
        return self.api_version == API_VERSION

    @property
    def group(self) -> str:
        """The API group without its version; ``core`` where Kubernetes has none."""
        group, slash, _ = self.api_version.rpartition("/")
        return group if slash else "core"

    def __str__(self) -> str:
        """Its identity, which knows neither id nor version: ``rc/web``, ``deployment.apps/shop/web``."""
        return self._text

    @functools.cached_property
    def _text(self) -> str:  # a farm asks some thirty times while it makes an object
        if self.own:
            return f"{self.kind}/{self.name}"
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind.lower()}.{self.group}/{place}{self.name}"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One object of a revision.

    ``after`` names objects of the same wave that must be ready first. ``apply`` once: it is made in its wave
    and never touched again in that revision. ``ignore`` are fields that count for the creation alone.
    ``replace``: if the object cannot take a change, it is deleted and created again. ``document`` is the
    person's file below what all objects have; None of what is only ``left``: it is in no file any more, and
    stays until it is pruned. ``release``: what is left stays, and is the app's no more.
    """

    ref: TypedReference
    wave: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    after: list[str] = []
    on_remove: Literal["delete", "keep"] = "delete"
    apply: Literal["always", "once"] = "always"
    ignore: list[str] = []
    replace: bool = False
    document: dict[str, Any] | None = None
    left: bool = False
    release: bool = False


class App(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What people ask of an app; its name is the last part of its key.

    ``revision``: the one that is wanted. ``prune``: objects no longer in the files are removed. ``atomic``: a
    revision is applied in one transaction. ``mass``: also where more than half of the objects would go.
    ``adopt``: objects of nobody's that differ, or of another app's, that it may take; ``*``: all.
    ``force``: also fields of theirs that other managers of Kubernetes own. ``deleting``: the app
    ends, with its objects or without. ``repair``: what differs from the files later is made so again.
    ``on_failure``, ``deadline``: what follows when a wave is not ready in time. ``history``: how many
    revisions are kept. ``namespace``: that of Kubernetes' objects which name none. ``resumed``: marks of
    Kubernetes' objects up to this number are older than the app's next one, by a person's word. ``needs``:
    features of farms (R11).
    """

    revision: Annotated[int, msgspec.Meta(ge=1)]
    prune: bool = False
    atomic: bool = False
    mass: bool = False
    adopt: Annotated[list[str], msgspec.Meta(max_length=MAX_ADOPTED)] = []
    force: bool = False
    paused: bool = False
    deleting: Literal["", "objects", "keep"] = ""
    repair: bool = True
    on_failure: Literal["stop", "rollback"] = "stop"
    deadline: Seconds = 600.0
    history: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    allow_secrets: bool = False
    namespace: str = ""
    resumed: Annotated[int, msgspec.Meta(ge=0)] = 0
    labels: dict[str, str] = {}
    needs: list[str] = []

    def adopts(self, ref: TypedReference) -> bool:
        """Whether it may take an object that is not its own and differs."""
        return ALL in self.adopt or str(ref) in self.adopt


class ResourceTracker(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One revision of an app. ``of``: the revision whose documents it repeats; 0: none. ``digest`` is that of
    the entries, which are ``packed``, by zlib or, where that would be too large, by xz; ``at`` is in seconds
    since the epoch. One that was altered by hand does not decode.
    """

    revision: Annotated[int, msgspec.Meta(ge=1)]
    of: int = 0
    digest: str
    count: int
    by: str = ""
    at: Time = 0.0
    reason: str = ""
    packed: bytes

    def __post_init__(self) -> None:
        """Check the entries.

        Raises:
            ValueError: they are not those that were recorded.
        """
        digest = hashlib.sha256(_unpacked(self.packed)).hexdigest()
        if digest != self.digest:
            raise ValueError(f"digest: found {digest[:12]} of the entries, expected {self.digest[:12]}")


def _unpacked(packed: bytes) -> bytes:
    try:
        if packed.startswith(XZ):
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_MEMORY).decompress(packed, MAX_BYTES)
        return zlib.decompressobj().decompress(packed, MAX_BYTES)
    except (zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"packed: {error}, expected packed entries") from error


class DispatchState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far an app is.

    ``seq`` grows by one at each new target; ``effective`` is the revision that is being applied, ``reached``
    the last one that all objects had. No revision up to ``swept`` has left anything behind. ``wave`` counts
    the gates passed, ``since`` is when the present one began and ``began`` when the target did, or went on
    above later marks. ``refused`` is the revision that failed, because of ``failure``. ``paused``: the time
    does not count. ``waits`` are objects of other apps that it takes over, the last one ``*`` where there are
    more, and ``behind`` all those apps. ``ended`` are objects of the present step that are applied once and
    were ready: one of them that is gone is not made again. ``repairs``: when which field of which object was
    repaired lately.
    """

    seq: int = 0
    effective: int = 0
    reached: int = 0
    swept: int = 0
    wave: int = 0
    since: Time = 0.0
    began: Time = 0.0
    refused: int = 0
    failure: str = ""
    paused: bool = False
    waits: Annotated[list[str], msgspec.Meta(max_length=MAX_WAITS)] = []
    behind: Annotated[list[str], msgspec.Meta(max_length=MAX_ENTRIES)] = []
    ended: Annotated[list[str], msgspec.Meta(max_length=MAX_ENTRIES)] = []
    repairs: dict[str, list[Time]] = {}


class ObjectStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an object waits for, or why it is refused."""

    ref: str
    state: str
    why: str = ""


class AppStatus(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """What people are told of an app: ``ready`` of ``objects`` are as the ``effective`` revision says,
    ``left`` are in no file any more; ``waiting`` are the first that are not ready. ``mark`` is the highest of
    Kubernetes' objects, where it is above all that are recorded; 0: none is.
    """

    phase: str = ""
    effective: int = 0
    reached: int = 0
    wave: int = 0
    waves: int = 0
    objects: int = 0
    ready: int = 0
    left: int = 0
    waiting: tuple[ObjectStatus, ...] = ()
    mark: int = 0

    @property
    def underway(self) -> bool:
        """Whether a revision was begun."""
        return self.effective > 0

    @property
    def progress(self) -> str:
        """The phase, the wave, and how many objects are ready; without a phase nothing could be planned."""
        if not self.phase:
            return self.state
        wave = f", wave {self.wave} of {self.waves}" if self.waves > 1 else ""
        return f"{self.phase}{wave}, {self.ready} of {self.objects} ready"


def tracker(revision: int, entries: Sequence[Entry], **told: Any) -> ResourceTracker:
    """A tracker of these entries; ``told`` are its other fields.

    Raises:
        InputInvalid: too many entries, or one twice. TooLarge: they do not fit into a record.
    """
    if len(entries) > MAX_ENTRIES:
        refuse("app", f"{len(entries)} objects", f"at most {MAX_ENTRIES}")
    known: set[str] = set()
    for entry in entries:
        if (name := str(entry.ref)) in known:
            refuse("app", f"{name} twice", "each object once")
        known.add(name)
    body = codec.encode(list(entries))
    if len(body) > MAX_BYTES:
        raise TooLarge(f"app: found {len(body)} bytes, expected at most {MAX_BYTES}")
    packed = zlib.compress(body, 9)
    if len(packed) > MAX_PACKED_BYTES:  # earlier versions do not read xz, and took no such app
        packed = lzma.compress(body, lzma.FORMAT_XZ)
    if len(packed) > MAX_PACKED_BYTES:
        raise TooLarge(f"app: found {len(packed)} bytes when packed, expected at most {MAX_PACKED_BYTES}")
    digest = hashlib.sha256(body).hexdigest()
    return ResourceTracker(revision=revision, digest=digest, count=len(entries), packed=packed, **told)


def entries(found: ResourceTracker, key: str) -> tuple[Entry, ...]:
    """The entries of a tracker.

    Raises:
        RecordInvalid: one does not decode.
    """
    return tuple(codec.decode(list[Entry], _unpacked(found.packed), key))


class AppStore:
    """Reads apps and their trackers, and builds the operations that change them."""

    def __init__(self, client: KeyReader, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def find(self, name: str) -> Stored[App] | None:
        """The app of that name, if there is one.

        Raises:
            RecordInvalid: it does not decode.
        """
        entry = await self._client.read(self._keys.record(KIND, name)) if name and "/" not in name else None
        return None if entry is None else codec.stored(App, entry)

    async def list(self) -> tuple[Mapping[str, Stored[App]], Sequence[RecordInvalid]]:
        """All apps by name, and the errors of those that do not decode."""
        found = await records(self._client, self._keys.tree(KIND), App)
        return dict(sorted(found.named.items())), found.broken

    async def tracker(self, name: str, revision: int) -> ResourceTracker:
        """One revision of an app.

        Raises:
            NotFound: there is none. RecordInvalid: it does not decode.
        """
        key = self._keys.tracker(name, revision)
        entry = await self._client.read(key)
        if entry is None:
            raise NotFound(f"app {name!r} has no revision {revision}", kind=KIND, id=name)
        return codec.decode(ResourceTracker, entry.value, key)

    async def entries(self, name: str, revision: int) -> tuple[Entry, ...]:
        """The entries of one revision.

        Raises:
            NotFound, RecordInvalid: as ``tracker``.
        """
        return entries(await self.tracker(name, revision), self._keys.tracker(name, revision))

    async def revisions(self, name: str) -> Sequence[int]:
        """The numbers of the revisions that are kept, in order."""
        page = await self._client.keys(self._keys.trackers(name))
        last = (self._keys.last_part(key) for key in page.items)
        return sorted(int(number) for number in last if number.isdecimal())

    def record(self, name: str, found: ResourceTracker) -> Operation:
        """Write a revision, which must not be there yet."""
        return operations.create(self._keys.tracker(name, found.revision), codec.encode(found))

    def want(self, name: str, stored: Stored[App] | None, app: App) -> Operation:
        """Write what people want of an app, in place of the version that was read, or as a new one."""
        if stored is None:
            return operations.create(self._keys.record(KIND, name), codec.encode(app))
        return operations.cas(stored.key, codec.rewrite(app, stored.raw), stored.index, flags=stored.flags)
