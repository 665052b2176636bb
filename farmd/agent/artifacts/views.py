"""Where artifacts lie in the cache, and how a workload comes to see them.

A process sees links in its directory, which lead to a folder of the agent's own and from there into the
cache. They change at a start, so a version that still runs keeps its files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from farmd.agent.errors import StartFailed
from farmd.agent.state import StateDirectory
from store.artifacts import Artifact, without_query
from store.manifests import Manifest
from store.variables import ARTIFACTS

VIEWS = "artifacts"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def cache(state: StateDirectory) -> Path:
    """The folder of what was fetched."""
    return state.root / "artifacts"


def form(artifact: Artifact) -> str:
    """The name under which the cache has the content: one for each use of it."""
    if artifact.unpack:
        return f"tree-{artifact.unpack}"
    return "file-555" if artifact.executable else "file-444"


def cached(state: StateDirectory, artifact: Artifact) -> Path:
    """Where the cache has an artifact, once it is fetched."""
    return cache(state) / artifact.digest / form(artifact)


def binds(state: StateDirectory, manifest: Manifest) -> list[tuple[str, str]]:
    """The artifacts with absolute paths: (path on the node, path that the workload sees).

    Raises:
        StartFailed: the cache lost one.
    """
    return [(str(here), each.to) for each, here in _all(state, manifest) if each.to.startswith("/")]


def variables(state: StateDirectory, instance: str, manifest: Manifest) -> dict[str, str]:
    """The variable that tells a workload where its artifacts are."""
    view = _view(state, instance, manifest)
    return {} if view is None else {ARTIFACTS: str(view)}


def lay_out(state: StateDirectory, instance: str, manifest: Manifest) -> None:
    """Show a workload that is about to start its artifacts, in place of those of an earlier start.

    Raises:
        StartFailed: the cache lost one.
    """
    view = _view(state, instance, manifest)
    views = state.directory(instance) / VIEWS
    if view is None and not views.exists():
        return
    names = set[str]()
    if view is not None:
        found = [(each.to, here) for each, here in _all(state, manifest) if not each.to.startswith("/")]
        names = {to.partition("/")[0] for to, _ in found}
        if not view.exists():
            _make(view, found)
    work = os.open(state.work(instance), _FOLDER)
    try:
        for name in _shown(views) - names:
            _unlink(work, name, views)
        for name in names:
            assert view is not None
            _link(state, instance, name, view, work)
    finally:
        os.close(work)
    for each in views.iterdir():
        if each != view:
            state.trash.throw(each)


def _view(state: StateDirectory, instance: str, manifest: Manifest) -> Path | None:
    """The folder with the artifacts of this manifest as it wants them; None: it has none such."""
    wanted = [each for each in manifest.artifacts if not each.to.startswith("/")]
    if not wanted:
        return None
    key = hashlib.sha256(msgspec.json.encode([(each.to, each.digest, form(each)) for each in wanted]))
    return state.directory(instance) / VIEWS / key.hexdigest()[:16]


def _all(state: StateDirectory, manifest: Manifest) -> Iterator[tuple[Artifact, Path]]:
    for at, each in enumerate(manifest.artifacts):
        here = cached(state, each)
        if not here.exists():
            source = without_query(each.source)
            raise StartFailed(f"artifacts[{at}]: {source} is not in the node's cache any more")
        yield each, here


def _make(view: Path, found: list[tuple[str, Path]]) -> None:
    view.parent.mkdir(mode=0o711, exist_ok=True)
    fresh = view.with_name(f"{view.name}.new")
    for to, here in found:
        place = fresh / to
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not place.is_symlink():  # an agent that was killed made it
            place.symlink_to(here)
    fresh.rename(view)


def _shown(views: Path) -> set[str]:
    """The names that earlier starts have in the workload's directory."""
    return {each.name for view in (views.iterdir() if views.exists() else ()) for each in view.iterdir()}


def _link(state: StateDirectory, instance: str, name: str, view: Path, work: int) -> None:
    """Put a link into the workload's directory, which is the workload's: nothing there is followed."""
    wanted = str(view / name)
    with contextlib.suppress(OSError):
        if os.readlink(name, dir_fd=work) == wanted:
            return
    state.trash.throw(state.work(instance) / name)
    os.symlink(wanted, name, dir_fd=work)


def _unlink(work: int, name: str, views: Path) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(name, dir_fd=work).startswith(f"{views}/"):
            os.unlink(name, dir_fd=work)
