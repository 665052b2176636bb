"""Follows config keys for owners that ask for it (R41): notices other values, and begins the rollout.

One request per farm and kind reads all followed keys, each quarter of a minute while an owner of the farm
follows: no query is parked (R23). What it reads only wakes workers. A rollout rests on consistent reads, and
its transaction compares the keys that changed.
"""

from __future__ import annotations

import hashlib
import math
import os.path
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farmd.commands import resolving, signing, specs
from farmd.commands.edits import Edits
from farmd.commands.mutation import Call, Mutation
from farmd.kinds import KINDS
from farmd.runtime.wake import Wake, wait
from farmd.work.owned import Following
from store import config, manifests, operations
from store.consul.client import ConsulClient
from store.entry import Entry, Stored
from store.errors import AccessDenied, Conflict, StoreError
from store.keys import Keys
from store.manifests import Manifest
from store.ports import Clock
from store.rollouts import History
from store.words import listed

LOOK_SECONDS = 15.0
# Values count once they stood still for so long, or once the first change is so old.
QUIET_SECONDS, LONGEST_SECONDS = 10.0, 300.0
# The least time between the beginnings of two rollouts of one owner.
PAUSE_SECONDS = 60.0
RETRY_SECONDS = 30.0
# A transaction has room for so many checks beside a rollout's own operations (R25).
MOST_CHECKS = 24
NAMED_AT_MOST = 3

Print = bytes | frozenset[tuple[str, bytes]]
"""What is kept of a value, or of the values below a folder; an absent one has none."""


def _print(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def expected(manifest: Manifest) -> dict[str, Print]:
    """What the keys and folders that a manifest refers to had when it was resolved."""
    found: dict[str, Print] = {}
    folders: dict[str, set[tuple[str, bytes]]] = {}
    for each in manifest.sources:
        print_ = _print(resolving.value_in(manifest, each).encode())
        if each.below:
            folders.setdefault(each.below, set()).add((each.kv.removeprefix(each.below), print_))
        else:
            found[each.kv] = print_
    return found | {folder: frozenset(values) for folder, values in folders.items()}


@dataclass(slots=True)
class _Follower:
    """An owner, and since when (monotonic) its keys have which other values than its version.

    ``text`` says why the last try began nothing; it is repeated at ``again``, or when a value changes.
    """

    wake: Wake
    manifest: str
    expected: Mapping[str, Print]
    changed: dict[str, Print | None] = field(default_factory=dict)
    first: float = 0.0
    last: float = 0.0
    text: str = ""
    stuck: bool = False
    again: float = 0.0


class Followers:
    """The owners of one kind in this farm that follow config keys."""

    def __init__(self, client: ConsulClient, keys: Keys, clock: Clock, farm: str) -> None:
        self._client, self._clock, self._farm = client, clock, farm
        self._tree = keys.tree(config.FAMILY)
        self._followers: dict[str, _Follower] = {}
        self._denied = ""
        self._looked = 0.0
        self._wake = Wake()

    def follow(self, item: str, sha: str, manifest: Manifest, wake: Wake) -> Following:
        """Follow the keys of an owner's manifest from now on; what is known of them."""
        known = self._followers.get(item)
        if known is None or known.manifest != sha or known.wake is not wake:
            known = self._followers[item] = _Follower(wake, sha, expected(manifest))
            self._wake.set()
        return self._known(known)

    def forget(self, item: str) -> None:
        """Follow nothing for an owner any more."""
        self._followers.pop(item, None)

    def tried(self, item: str, text: str, *, stuck: bool, again: float) -> None:
        """Nothing began for an owner, and why; the same is tried again after so many seconds."""
        if (known := self._followers.get(item)) is not None:
            known.text, known.stuck, known.again = text, stuck, self._clock.mono() + again

    def _known(self, known: _Follower) -> Following:
        if self._denied:
            return Following(text=self._denied, stuck=True)
        if not known.changed:
            return Following()
        now, names = self._clock.mono(), tuple(sorted(known.changed))
        if known.text:
            left = known.again - now
            after = None if math.isinf(left) else max(0.0, left)
            return Following(changed=names, due=left <= 0, text=known.text, stuck=known.stuck, after=after)
        # Only a look tells that a value stood still.
        still = self._looked - known.last >= QUIET_SECONDS or now - known.first >= LONGEST_SECONDS
        what = listed([f"{config.PREFIX}{name}" for name in names], NAMED_AT_MOST)
        text = f"{what} changed: a rollout begins once it stays unchanged for {QUIET_SECONDS:g} s"
        return Following(changed=names, due=still, text=text)

    # -- looking ---------------------------------------------------------------------------------
    async def run(self) -> None:
        """Look while an owner follows, until cancelled; nothing is read and no timer runs while none does."""
        while True:
            self._wake.clear()
            if self._followers:
                await self.look()
                await self._clock.sleep(LOOK_SECONDS)
            else:
                await wait(self._wake, self._clock, None)

    async def look(self) -> None:
        """Read the followed keys once, and wake the workers of owners for which something changed."""
        paths = {path for each in self._followers.values() for path in each.expected}
        if not paths:
            return
        begin = os.path.commonprefix(sorted(paths))  # noqa: RUF071 - Consul's prefixes are of characters
        try:
            page = await self._client.list(self._tree + begin)
        except AccessDenied:
            rule = f'key_prefix "{self._tree}" {{ policy = "list" }}'
            self._tell(f"farm {self._farm} may not read {self._tree}, expected {rule} in its token")
            return
        except StoreError:
            return  # the next look tells; nothing is concluded from no answer
        self._tell("")
        self._looked = self._clock.mono()
        found: dict[str, bytes] = {}
        folders: dict[str, set[tuple[str, bytes]]] = {path: set() for path in paths if path.endswith("/")}
        for raw in page.items:
            path = raw.key.removeprefix(self._tree)
            folder, name = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
            if path in paths or folder in folders:
                found[path] = _print(Entry.of(raw).value)
                if folder in folders and name:
                    folders[folder].add((name, found[path]))
        for each in self._followers.values():
            self._compare(each, found | {folder: frozenset(values) for folder, values in folders.items()})

    def _tell(self, denied: str) -> None:
        if denied != self._denied:
            self._denied = denied
            for each in self._followers.values():
                each.wake.set()

    def _compare(self, known: _Follower, found: Mapping[str, Print]) -> None:
        changed = {path: found.get(path) for path, was in known.expected.items() if found.get(path) != was}
        if changed != known.changed:
            if not known.changed:
                known.first = self._looked
            known.changed, known.last, known.text = changed, self._looked, ""
            known.wake.set()
        elif changed and (not known.text or self._looked >= known.again):
            known.wake.set()


# What a worker does once the values stand still.


class Unfollowed(Exception):
    """Why nothing begins, and when (seconds) the same is tried again. ``stuck``: a person must act."""

    def __init__(self, text: str, *, stuck: bool, again: float = RETRY_SECONDS) -> None:
        super().__init__(text)
        self.stuck, self.again = stuck, again


async def change(
    call: Call, noun: Edits[Any, Any], stored: Stored[Any], manifest: Manifest
) -> Mutation | None:
    """The start of a rollout to the present values of the config keys; None: they are as in the manifest.

    Raises:
        Unfollowed: a value does not fit, was rolled out before, or nobody signed the manifest.
        InputInvalid, RecordInvalid, AccessDenied: a key is missing, unfit, or may not be read.
        Conflict, Locked: the owner is a part, managed, or locked.
    """
    record = stored.record
    renewed = await resolving.renewed(call, manifest)
    specs.check_pod(renewed, record.name)
    known = [record.manifest, *([record.reverted.manifest] if record.reverted else [])]
    body = await manifests.kept(call.client, call.keys, renewed, known)
    sha = manifests.digest(body)
    if sha == record.manifest:
        return None
    await _refuse_known(call, noun, record, sha)
    current, held = await noun.editable(call, record.id, membership=True, fields={"pod"})
    if current.index != stored.index:
        raise Unfollowed("the record changed", stuck=False)
    try:
        await signing.refuse_unsigned(call, [signing.Start(f"{noun.kind}/{record.name}", sha)])
    except Conflict as error:
        raise Unfollowed(f"follow: {error.message}", stuck=True) from error
    begin = KINDS[noun.words.gradual].begins
    assert begin is not None
    wanted = specs.changed(record, manifest=sha)
    ensured = (manifests.ensure(call.keys, body), *_unchanged(call.keys, manifest, renewed))
    return await begin()(call, current, wanted, held, ensured, pod=renewed)


async def _refuse_known(call: Call, noun: Edits[Any, Any], record: Any, sha: str) -> None:
    """Refuse what was rolled out before and taken back, and a second rollout in a short time."""
    past = await History(call.client, call.keys, noun.kind).read(record.name)
    tries = [each.record for each in past.items]
    if (last := next((each for each in tries if each.to_manifest == sha), None)) is not None:
        how = "reverted" if last.outcome == "done" else last.outcome
        why = f": {last.reason}" if last.reason else ""
        raise Unfollowed(
            f"reverted: version {sha[:12]} was {how}{why}; it is not tried again until a value changes",
            stuck=False,
            again=math.inf,
        )
    if tries and call.clock.now() - tries[0].began < PAUSE_SECONDS:
        raise Unfollowed(f"a rollout began less than {PAUSE_SECONDS:g} s ago", stuck=False)


def _unchanged(keys: Keys, before: Manifest, after: Manifest) -> list[operations.Operation]:
    """Checks that the new values are still the keys' values."""
    known = {(each.kv, each.version) for each in before.sources}
    changed = sorted({(each.kv, each.version) for each in after.sources} - known)
    return [operations.check_index(config.key_of(keys, path), at) for path, at in changed[:MOST_CHECKS]]
