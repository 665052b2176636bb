"""The artifacts of one agent: fetched once for all pods of the node, by checksum, and removed much later.

A name in the cache is complete: content gets its name by a rename, after its checksum was right and it is on
the disk. What a killed agent left is continued or removed. Pods that want the same content wait for one
download. All work with the disk runs in a few threads and processes of its own, so a disk that is silent or
full stops these pods and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import marshal
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from farmd.agent.artifacts import views
from farmd.agent.artifacts.download import Download, Origin, Part, require, shown
from farmd.agent.artifacts.rules import Rules, zstd_from
from farmd.agent.children import answered
from farmd.agent.errors import StartFailed
from farmd.agent.files import ROOM_BYTES, write_atomically
from farmd.agent.model import ArtifactConfig
from farmd.agent.state import StateDirectory
from farmd.agent.users import Account, Users
from store.artifacts import Artifact, path_of
from store.manifests import Manifest
from store.ports import Clock, Recorder

log = structlog.get_logger()
T = TypeVar("T")

SANDBOX = Path(__file__).with_name("sandbox.py")
AT_ONCE, THREADS = 4, 4
MOST_ENTRIES = 200_000
RESERVE, RESERVE_SHARE = 256 << 20, 0.05
HOUR, LOOK_SECONDS = 3600.0, 600.0
LEAST_FREE = 0.1
GOOD_KEPT = 2
PART, FRESH = "part", "new."


class Good(msgspec.Struct):
    """The checksums of a pod's last good versions by its id, the last one first."""

    versions: dict[str, list[list[str]]] = {}


class Artifacts:
    """The artifacts that one agent fetched; ``users`` chooses the user of a pod, ``environ`` is the
    agent's environment.
    """

    def __init__(
        self, config: ArtifactConfig, *, state: StateDirectory, users: Users, environ: Mapping[str, str],
        clock: Clock, recorder: Recorder,
    ) -> None:  # fmt: skip
        self.rules = Rules(config)
        self._config, self._state, self._users = config, state, users
        self._environ, self._clock, self._recorder = environ, clock, recorder
        self._root = views.cache(state)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._looks: dict[Path, asyncio.Future[bool]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._good: Good | None = None
        self._look_at = 0.0

    async def get(self, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False) -> None:
        """Have all artifacts of a manifest in the cache; ``kept`` is that of ``Launch``.

        Raises:
            StartFailed: with the field and the reason for people.
        """
        if not manifest.artifacts:
            return
        self.rules.preflight(manifest)
        user = None if manifest.runtime == "container" else self._users.of(manifest, kept=kept)
        for at, each in enumerate(manifest.artifacts):
            url = self.rules.judged(each.source)
            name = shown(each.source, url)
            try:
                await self._ready(each, url, user, partial(_tell, tell, name))
            except StartFailed as error:
                raise StartFailed(f"artifacts[{at}]: {name}: {error.message}", field="artifacts") from error
            except OSError as error:
                why = "disk full" if _is_full(error) else error.strerror or str(error)
                raise StartFailed(f"artifacts[{at}]: {name}: {why}", field="artifacts") from error

    async def _ready(
        self, artifact: Artifact, url: str, user: Account | None, tell: Callable[[str], None]
    ) -> None:
        """Fetch one artifact, unless it is here; one that another pod fetches is waited for."""
        here = views.cached(self._state, artifact)
        if await self._is_here(here):
            return
        lock = self._lock(artifact.digest)
        if lock.locked() or self._slots.locked():
            tell(": waiting for another download")
        async with lock:
            # Asked anew: an answer that others wait for may be older than what the lock waited for.
            if await self.on_disk(_touched, here, here.parent, self._clock.now()):
                return
            began, result = self._clock.mono(), "failed"
            try:
                async with self._slots, asyncio.timeout(self._config.timeout) as limit:
                    await self._fetch(artifact, url, user, tell)
                result = "ok"
            except TimeoutError:
                if not limit.expired():
                    raise
                seconds = self._config.timeout
                raise StartFailed(f"it took longer than {seconds:g} s (agent.artifact_timeout)") from None
            finally:
                took = self._clock.mono() - began
                self._recorder.observe("farmd_artifact_fetch_duration_seconds", took, result=result)

    async def _is_here(self, path: Path) -> bool:
        """Whether the cache has it. All that ask at once get one answer, so a hundred pods wake once."""
        look = self._looks.get(path)
        if look is None:
            work = self.on_disk(_touched, path, path.parent, self._clock.now())
            look = self._looks[path] = asyncio.ensure_future(work)
            look.add_done_callback(lambda _: self._looks.pop(path, None))
        return await asyncio.shield(look)

    async def _fetch(
        self, artifact: Artifact, url: str, user: Account | None, tell: Callable[[str], None]
    ) -> None:
        """Fetch what is not here, check it, and give it its name."""
        folder = self._root / artifact.digest
        await self.on_disk(self._folder, folder)
        part = Part(folder / PART, self._room)
        try:
            known = await self.on_disk(self._opened, part)
            if part.digest != artifact.digest:
                if path := path_of(url):
                    tell("")
                    await self._copy(path, folder / PART, user)
                    await self.on_disk(part.close)
                    part = Part(folder / PART, self._room)
                    await self.on_disk(part.open)
                else:
                    download = Download(
                        rules=self.rules, clock=self._clock, on_disk=self.on_disk, tell=tell, part=part
                    )
                    await download.run(url, known)
            if part.digest != artifact.digest:
                await self.on_disk(part.drop)
                raise StartFailed(f"found sha256 {part.digest[:12]}…, expected {artifact.digest[:12]}…")
            if artifact.unpack:
                tell(": unpacking")
                await self._unpack(artifact, folder)
                await self.on_disk(part.drop)
            else:
                mode = 0o555 if artifact.executable else 0o444
                await self.on_disk(part.finish, mode)
                await self.on_disk(_rename, folder / PART, views.cached(self._state, artifact))
        except (StartFailed, OSError) as error:
            if _is_full(error) or str(error).startswith(("disk full", "larger than")):
                await self.on_disk(part.drop)  # the room is for others, and what is here would help nobody
            raise
        finally:
            await asyncio.shield(self.on_disk(part.close))
        log.info("artifact.fetched", sha256=artifact.digest[:12], form=views.form(artifact))

    def _opened(self, part: Part) -> Origin | None:
        """Open what an earlier try left; a file with another mode is a copy of the one that is here."""
        for other in ("file-444", "file-555"):
            with contextlib.suppress(FileNotFoundError):
                require(self._room(), (part.path.parent / other).stat().st_size)
                shutil.copyfile(part.path.parent / other, part.path)
                break
        return part.open()

    async def _copy(self, path: str, into: Path, user: Account | None) -> None:
        """Copy a file of the node, as the user of the pod reads it."""
        other = user is not None and user.other
        await self._sandboxed(
            {
                "path": path,
                "part": str(into),
                "folders": self.rules.folders,
                "user": (user.uid, user.gid, list(user.groups)) if user is not None and other else None,
                "most": self._config.most,
                "reserve": self._reserve(),
            }
        )

    async def _unpack(self, artifact: Artifact, folder: Path) -> None:
        fresh = folder / f"{FRESH}{views.form(artifact)}"
        await self.on_disk(self._made_anew, fresh)
        try:
            await self._sandboxed(
                {
                    "part": str(folder / PART),
                    "into": str(fresh),
                    "kind": artifact.unpack,
                    "zstd": zstd_from(),
                    "most": self._config.unpacked,
                    "entries": MOST_ENTRIES,
                    "reserve": self._reserve(),
                }
            )
        except BaseException:
            await asyncio.shield(self.on_disk(self._state.trash.throw, fresh))
            await asyncio.shield(self.on_disk(self._state.empty_trash))
            raise
        await self.on_disk(_rename, fresh, views.cached(self._state, artifact))

    async def _sandboxed(self, spec: dict[str, Any]) -> None:
        """Run a job in a process of its own, which ends with its waiter."""
        environ = {name: self._environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in self._environ}
        told = marshal.dumps(spec | {"parent": os.getpid()})
        code, said = await answered(SANDBOX, "-S", environ=environ, told=told)
        if code:
            why = said.decode("utf-8", "replace").strip()
            raise StartFailed(why or f"its process ended with code {code}")

    # -- the disk --------------------------------------------------------------------------------
    def on_disk(self, work: Callable[..., T], *given: Any) -> Awaitable[T]:
        """Do work that waits for the disk in a thread of the artifacts' own."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "artifacts")
        return asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given))

    def _folder(self, folder: Path) -> None:
        self._state.require_room()
        self._root.mkdir(mode=0o711, exist_ok=True)
        folder.mkdir(mode=0o711, exist_ok=True)
        require(self._room(), 1)

    def _made_anew(self, folder: Path) -> None:
        self._state.trash.throw(folder)
        folder.mkdir(mode=0o700)

    def _reserve(self) -> int:
        """How much of the disk stays free whatever pods want: other pods have to start, too."""
        found = os.statvfs(self._root)
        return max(2 * ROOM_BYTES, min(RESERVE, int(found.f_blocks * found.f_frsize * RESERVE_SHARE)))

    def _room(self) -> int:
        found = os.statvfs(self._root)
        free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return free * found.f_frsize - self._reserve()

    def _lock(self, sha: str) -> asyncio.Lock:
        return self._locks.setdefault(sha, asyncio.Lock())

    # -- what stays ------------------------------------------------------------------------------
    async def tidy(self, needed: Sequence[Manifest], healthy: Sequence[Manifest]) -> None:
        """Note what pods need and what is good; now and then remove what has not been needed for long."""
        ids = {each.id for each in needed}
        kept = {sha for each in needed for sha in _digests(each)}
        good = [each for each in healthy if each.artifacts]
        if not await self.on_disk(self._root.exists):
            return
        await self.on_disk(self._noted, kept, good)
        if not self._config.retention or self._clock.mono() < self._look_at:
            return
        self._look_at = self._clock.mono() + LOOK_SECONDS
        versions = (await self.on_disk(self._known)).versions
        kept |= {sha for name in ids for version in versions.get(name, ()) for sha in version}
        for sha, cause in await self.on_disk(self._idle, kept):
            lock = self._lock(sha)
            if lock.locked():
                continue
            async with lock:
                # Asked again: a pod may have come to need it meanwhile.
                if [cause for other, cause in await self.on_disk(self._idle, kept) if other == sha]:
                    await self.on_disk(self._state.trash.throw, self._root / sha)
                    self._recorder.count("farmd_artifacts_removed_total", cause=cause)
                    log.info("artifact.removed", sha256=sha[:12], cause=cause)

    def _noted(self, kept: set[str], good: Sequence[Manifest]) -> None:
        for sha in kept:
            _touched(self._root / sha, self._root / sha, self._clock.now())
        known, changed = self._known(), False
        for each in good:
            version, before = _digests(each), known.versions.get(each.id, [])
            if before[:1] != [version]:
                others = [other for other in before if other != version]
                known.versions[each.id] = [version, *others][:GOOD_KEPT]
                changed = True
        if changed:
            write_atomically(self._state.root / "artifacts.json", msgspec.json.encode(known), sync=False)

    def _known(self) -> Good:
        if self._good is None:
            try:
                body = (self._state.root / "artifacts.json").read_bytes()
                self._good = msgspec.json.decode(body, type=Good)
            except (OSError, msgspec.DecodeError):
                self._good = Good()
        return self._good

    def _idle(self, kept: set[str]) -> list[tuple[str, str]]:
        """What nothing has needed for long, and why it may go."""
        usage = shutil.disk_usage(self._root)
        pressed = usage.free < usage.total * LEAST_FREE
        limit = min(HOUR, self._config.retention) if pressed else self._config.retention
        cause, now = "disk" if pressed else "unused", self._clock.now()
        return [
            (sha, cause) for sha, at in sorted(_folders(self._root)) if sha not in kept and now - at > limit
        ]

    async def close(self) -> None:
        """Let go of the threads; a download goes on when the next agent asks for it."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _tell(tell: Callable[[str], None], name: str, what: str) -> None:
    tell(f"fetching {name}{what}")


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _digests(manifest: Manifest) -> list[str]:
    return sorted({each.digest for each in manifest.artifacts})


def _folders(root: Path) -> Iterator[tuple[str, float]]:
    """What is in the cache, and when it was needed last."""
    for each in root.iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield each.name, each.stat().st_mtime


def _touched(path: Path, folder: Path, now: float) -> bool:
    """Whether something is in the cache; its folder then has the time at which it was needed last."""
    if not os.path.lexists(path):
        return False
    os.utime(folder, (now, now))
    return True


def _rename(fresh: Path, name: Path) -> None:
    """Give complete content its name, and have that on the disk."""
    fresh.rename(name)
    folder = os.open(name.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
