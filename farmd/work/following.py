"""Follows config keys for owners that ask for it (R41): notices other values, and begins the rollout.

One request per farm and kind reads all followed config keys, each quarter of a minute while an owner of the
farm follows, and one each secret and each key elsewhere: no query is parked (R23). What it reads only wakes
workers. A rollout rests on consistent reads, and its transaction compares the keys that changed.
"""

from __future__ import annotations

import hashlib
import math
import os.path
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from farmd.commands import parts, resolving, secret_references, signing, specs
from farmd.commands.edits import Edits
from farmd.commands.mutation import Call, Mutation
from farmd.kinds import KINDS
from farmd.runtime.wake import Wake, wait
from farmd.work.owned import Following
from store import config, manifests, operations, secrets
from store.canonical import builtins
from store.consul.client import ConsulClient
from store.entry import Entry, Stored
from store.errors import AccessDenied, Conflict, NotFound, RecordInvalid, StoreError
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
Found = Mapping[str, Print]


def _print(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def expected(manifest: Manifest) -> dict[str, Print]:
    """What keys and folders had when a manifest was resolved, and the versions of its secrets, each by the
    key below the cluster's prefix, or after a slash.
    """
    found: dict[str, Print] = {}
    folders: dict[str, set[tuple[str, bytes]]] = {}
    for each in manifest.sources:
        print_ = _print(resolving.value_in(manifest, each).encode())
        if each.below and each.field.startswith(f"{resolving.ENV}."):
            folders.setdefault(_name(each.below), set()).add((each.kv.removeprefix(each.below), print_))
        else:
            found[_name(each.kv)] = print_
    for path, version in secret_references.unpinned(builtins(manifest.sealed)).items():
        found[f"{secrets.PREFIX}{path}"] = b"%d" % version
    return found | {folder: frozenset(values) for folder, values in folders.items()}


def _name(path: str) -> str:
    return path if path.startswith("/") else f"{config.PREFIX}{path}"


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
    """The owners of one kind in this farm that follow config keys and secrets; ``foreign`` are the prefixes
    of other keys of Consul that the farm reads for them.
    """

    def __init__(
        self, client: ConsulClient, keys: Keys, clock: Clock, farm: str, foreign: Sequence[str] = ()
    ) -> None:
        self._client, self._keys, self._clock, self._farm = client, keys, clock, farm
        self._foreign = tuple(foreign)
        self._followers: dict[str, _Follower] = {}
        self._denied: dict[str, str] = {}
        self._looked = 0.0
        self._wake = Wake()

    def follow(self, item: str, sha: str, manifest: Manifest, wake: Wake) -> Following:
        """Follow what an owner's manifest refers to from now on; what is known of it."""
        known = self._followers.get(item)
        if known is None or known.manifest != sha or known.wake is not wake:
            known = self._followers[item] = _Follower(wake, sha, expected(manifest))
            self._wake.set()
        return self._known(known)

    def forget(self, item: str) -> None:
        """Follow nothing for an owner any more."""
        self._followers.pop(item, None)

    def tried(self, item: str, text: str, *, stuck: bool, again: bool = True) -> None:
        """Nothing began for an owner, and why. ``again``: the same is tried again after a while."""
        if (known := self._followers.get(item)) is not None:
            known.text, known.stuck = text, stuck
            known.again = self._clock.mono() + RETRY_SECONDS if again else math.inf

    def _known(self, known: _Follower) -> Following:
        denied = next((self._denied[name] for name in sorted(known.expected) if name in self._denied), "")
        if denied:
            return Following(text=denied, stuck=True)
        if not known.changed:
            return Following()
        now, names = self._clock.mono(), tuple(sorted(name.removeprefix("/") for name in known.changed))
        if known.text:
            left = known.again - now
            after = None if math.isinf(left) else max(0.0, left)
            return Following(changed=names, due=left <= 0, text=known.text, stuck=known.stuck, after=after)
        # Only a look tells that a value stood still.
        still = self._looked - known.last >= QUIET_SECONDS or now - known.first >= LONGEST_SECONDS
        what = listed(list(names), NAMED_AT_MOST)
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
        """Read what is followed once, and wake the workers of owners for which something changed."""
        wanted = {name for each in self._followers.values() for name in each.expected}
        denied: dict[str, str] = {}
        found: dict[str, Print] = {}
        try:
            for names, read in self._reads(wanted):
                try:
                    found |= await read()
                except AccessDenied:
                    text = (
                        f"farm {self._farm} may not read {names[0].removeprefix('/')}: {self._rule(names[0])}"
                    )
                    denied |= dict.fromkeys(names, text)
                except RecordInvalid as error:
                    denied |= dict.fromkeys(names, error.message)
        except StoreError:
            return  # the next look tells; nothing is concluded from no answer
        self._tell(denied)
        self._looked = self._clock.mono()
        for each in self._followers.values():
            if each.expected.keys().isdisjoint(denied):
                self._compare(each, found)

    def _reads(self, wanted: Collection[str]) -> Iterator[tuple[list[str], Callable[[], Awaitable[Found]]]]:
        """The requests that read everything, each with what it reads: one for all config keys."""
        own = sorted(name for name in wanted if name.startswith(config.PREFIX))
        if own:
            yield own, partial(self._config, own)
        for name in sorted(set(wanted).difference(own)):
            yield [name], partial(self._secret if name.startswith(secrets.PREFIX) else self._other, name)

    async def _config(self, names: Sequence[str]) -> Found:
        begin = os.path.commonprefix(names)  # noqa: RUF071 - Consul's prefixes are of characters
        page = await self._client.list(f"{self._keys.prefix}{begin}")
        values = {raw.key.removeprefix(self._keys.prefix): _print(Entry.of(raw).value) for raw in page.items}
        return {name: print_ for name in names if (print_ := _of(values, name)) is not None}

    async def _other(self, name: str) -> Found:
        """A key of Consul outside of the cluster, or a folder.

        Raises:
            AccessDenied: the configuration does not list it, or the token may not read it.
        """
        if not self._listed(name):
            raise AccessDenied(name)
        if name.endswith("/"):
            page = await self._client.list(name[1:])
            values = {f"/{raw.key}": _print(Entry.of(raw).value) for raw in page.items}
            return {name: _of(values, name) or frozenset()}
        entry = await self._client.read(name[1:])
        return {} if entry is None else {name: _print(entry.value)}

    def _listed(self, name: str) -> bool:
        """Whether the configuration lets the farm read this key for all who may write manifests."""
        return name[1:].startswith(self._foreign) and not name[1:].startswith(self._keys.prefix)

    async def _secret(self, name: str) -> Found:
        head = await secrets.newest(self._client, self._keys, name.removeprefix(secrets.PREFIX))
        return {} if head is None else {name: b"%d" % head.record.version}

    def _rule(self, name: str) -> str:
        """What a person does so that this farm may read it."""
        if name.startswith("/"):
            if not self._listed(name):
                return "expected farm.follow of all farms to list it"
            return f'expected key_prefix "{name[1:]}" {{ policy = "list" }} in its token'
        tree = f"{self._keys.prefix}{name.partition('/')[0]}/"
        return f'expected key_prefix "{tree}" {{ policy = "list" }} in its token'

    def _tell(self, denied: dict[str, str]) -> None:
        if denied != self._denied:
            self._denied = denied
            for each in self._followers.values():
                each.wake.set()

    def _compare(self, known: _Follower, found: Found) -> None:
        changed = {name: found.get(name) for name, was in known.expected.items() if found.get(name) != was}
        if changed != known.changed:
            if not known.changed:
                known.first = self._looked
            known.changed, known.last, known.text = changed, self._looked, ""
            known.wake.set()
        elif changed and (not known.text or self._looked >= known.again):
            known.wake.set()


def _of(values: Mapping[str, bytes], name: str) -> Print | None:
    """The value of a key, or those right below a folder."""
    if not name.endswith("/"):
        return values.get(name)
    below = ((key.removeprefix(name), print_) for key, print_ in values.items() if key.startswith(name))
    return frozenset((key, print_) for key, print_ in below if key and "/" not in key)


# What a worker does once the values stand still.


class Unfollowed(Exception):
    """Why nothing begins. ``stuck``: a person must act. ``again``: the same is tried again after a while.
    ``stores``: the body of a manifest that a person has to sign, which is not stored yet.
    """

    def __init__(self, text: str, *, stuck: bool, again: bool = True, stores: bytes = b"") -> None:
        super().__init__(text)
        self.stuck, self.again, self.stores = stuck, again, stores


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
    if parts.opens(record):  # the files of an app refer to the keys, and leave the values to the farm
        call = replace(call, part_of=record.part_of, open=tuple(record.open))
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
        there = await _is_stored(call, sha)
        way = f"farmctl manifest sign {noun.words.noun}/{record.name} --digest {sha} --key KEYFILE"
        text = f"follow: {error.message}; {way}"
        raise Unfollowed(text, stuck=True, stores=b"" if there else body) from error
    begin = KINDS[noun.words.gradual].begins
    assert begin is not None
    wanted = specs.changed(record, manifest=sha)
    ensured = (manifests.ensure(call.keys, body), *_unchanged(call.keys, manifest, renewed))
    return await begin()(call, current, wanted, held, ensured, pod=renewed)


async def _is_stored(call: Call, sha: str) -> bool:
    try:
        await manifests.read_body(call.client, call.keys, sha)
    except (NotFound, RecordInvalid):
        return False
    return True


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
            again=False,
        )
    if tries and call.clock.now() - tries[0].began < PAUSE_SECONDS:
        raise Unfollowed(f"a rollout began less than {PAUSE_SECONDS:g} s ago", stuck=False)


def _unchanged(keys: Keys, before: Manifest, after: Manifest) -> list[operations.Operation]:
    """Checks that the new values are still the keys' values."""
    known = {(each.kv, each.version) for each in before.sources}
    changed = sorted({(each.kv, each.version) for each in after.sources} - known)
    return [operations.check_index(config.key_of(keys, path), at) for path, at in changed[:MOST_CHECKS]]
