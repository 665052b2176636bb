"""The runtimes of one agent: which one a workload belongs to, and whether it can be asked now."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from farmd.agent.disk import Disk, DiskSilent
from farmd.agent.errors import StartFailed
from farmd.agent.runtimes.port import Runtime
from store.manifests import Manifest


class Runtimes:
    """The runtimes of one agent, by name."""

    def __init__(self, *runtimes: Runtime) -> None:
        self._by_name = {runtime.name: runtime for runtime in runtimes}
        self._elsewhere = Disk()

    def __iter__(self) -> Iterator[Runtime]:
        return iter(self._by_name.values())

    def of(self, name: str) -> Runtime:
        """The runtime of that name.

        Raises:
            StartFailed: this agent does not have it.
        """
        if name not in self._by_name:
            known = ", ".join(self._by_name)
            raise StartFailed(f"runtime: found {name!r}, expected one that this agent has ({known})")
        return self._by_name[name]

    def doubt(self, name: str) -> str:
        """Why a runtime cannot tell now what runs; empty if it can."""
        return self.of(name).doubt if name in self._by_name else f"this agent has no runtime {name!r}"

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
        """Refuse a manifest that cannot run on this node; ``kept`` is that of ``Launch``.

        Raises:
            StartFailed: naming the field, what was found and what was expected.
        """
        judge = partial(self.of(manifest.runtime).preflight, manifest, kept=kept)
        if not (manifest.mounts or manifest.files or manifest.secrets):
            judge()
            return
        try:
            # It follows paths to wherever they lead, such as a file server that is gone.
            self._elsewhere.call(judge)
        except DiskSilent as error:
            raise StartFailed(f"mounts: {error.strerror}", field="mounts") from error

    def doubts(self) -> dict[str, str]:
        """The runtimes that cannot tell now what runs, with the reasons."""
        return {runtime.name: runtime.doubt for runtime in self if runtime.doubt}

    def features(self) -> list[str]:
        """What the node's presence says of them (R11)."""
        return list(dict.fromkeys(feature for runtime in self for feature in runtime.features))
