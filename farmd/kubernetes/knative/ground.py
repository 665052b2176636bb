"""What all services of a cluster share: whether Knative is there, its version, and its ConfigMaps.

Up to 1.20 the annotations of a revision reach its pods, which restart; since 1.21 its bounds reach its
autoscaler alone. So without a version nothing is touched.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

import msgspec
import structlog

from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import Forbidden, KubernetesError, NotFound
from farmd.kubernetes.knative.objects import CONFIG_MAPS, SERVICES, VERSION_LABEL, ConfigMap, Meta
from farmd.kubernetes.knative.settings import CONFIG, NETWORK, Settings, new_config
from farmd.kubernetes.objects import CRDS
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from store.errors import CredentialInvalid, InputInvalid
from store.mistakes import shown
from store.ports import Clock

log = structlog.get_logger()

LOOK_SECONDS = 30.0
# From this minor version on a revision's bounds reach its autoscaler and nothing else.
BOUNDS_ON_REVISIONS = (1, 21)


class _Definition(msgspec.Struct, frozen=True):
    metadata: Meta


class Ground:
    """What was read last; ``found`` is set once Knative is there, ``problem`` blocks all services."""

    def __init__(self, transport: KubernetesTransport, namespace: str, clock: Clock) -> None:
        self.found = asyncio.Event()
        self.problem = "Knative's version has not been read yet"
        self.bounds_on_revisions = True
        self.settings = Settings()
        self._transport, self._namespace, self._clock = transport, namespace, clock
        self._configs = Objects(transport, CONFIG_MAPS, ConfigMap, "other", lambda: LOOK_SECONDS)
        self._told = ""

    async def run(self, changed: Callable[[], None]) -> None:
        """Look now and then; call back where something changed."""
        told: tuple[object, ...] = ()
        while True:
            await self.look()
            found = (self.problem, self.bounds_on_revisions, self.settings)
            if found != told:
                changed()
            told = found
            await self._clock.sleep(LOOK_SECONDS)

    async def confirmed(self) -> bool:
        """Read the version again: whether bounds are still written where the last plan wants them."""
        planned = self.bounds_on_revisions
        try:
            self.bounds_on_revisions = bounds_on_revisions(await self._version())
        except InputInvalid as error:
            self.problem = error.message
        return not self.problem and self.bounds_on_revisions == planned

    async def look(self) -> None:
        """Read everything once; what cannot be read now stays as it was."""
        try:
            self.bounds_on_revisions = bounds_on_revisions(await self._version())
            self.settings = await self._read()
            self.problem = ""
            self.found.set()
        except InputInvalid as error:
            self.problem = error.message
            self.found.set()
        except NotFound:
            self._tell("Knative is not installed: its definitions are missing")
        except (KubernetesError, CredentialInvalid) as error:
            self._tell(error.message)

    async def _read(self) -> Settings:
        """The settings. Where Knative is there, and farms may not read them, its services say so."""
        try:
            return new_config(await self._data(CONFIG), await self._data(NETWORK))
        except Forbidden as error:
            if self.problem:
                raise InputInvalid(error.message) from error
            raise

    def _tell(self, text: str) -> None:
        """One line for each new reason."""
        if text != self._told:
            log.warning("progressive.idle", reason=text)
        self._told = text

    async def _version(self) -> str:
        body = await self._transport.send(ApiRequest("GET", CRDS.path(name=str(SERVICES))))
        return msgspec.json.decode(body, type=_Definition).metadata.labels.get(VERSION_LABEL, "")

    async def _data(self, name: str) -> Mapping[str, str] | None:
        found = await self._configs.get(self._namespace, name)
        return found.data if found is not None else None


def bounds_on_revisions(version: str) -> bool:
    """Whether bounds are written on revisions in that version of Knative, and not on autoscalers.

    Raises:
        InputInvalid: that is no version.
    """
    if version == "devel":
        return True
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        told = f"{SERVICES}: label {VERSION_LABEL}: found {shown(version)}, expected a version such as 1.21.0"
        raise InputInvalid(told, field=VERSION_LABEL)
    return (int(found[1]), int(found[2])) >= BOUNDS_ON_REVISIONS
