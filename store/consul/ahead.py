"""Reads keys ahead, for commands that read one key after the other.

What was read ahead is as old as the beginning. That never decides alone: each write names the version that it
was prepared from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from store.consul.client import ConsulClient
from store.entry import Entry
from store.ports import Mode


class ReadAhead(ConsulClient):
    """The same client, which begins to read ``keys`` at once and answers each of them from that, within the
    block of its ``with``. Of ``known`` keys the caller says what is there, so they are not read.

    A key whose read fails raises that error to whoever asks for it.
    """

    def __init__(
        self, client: ConsulClient, keys: Collection[str], known: Mapping[str, Entry | None] | None = None
    ) -> None:
        vars(self).update(vars(client))  # the same connections, token and metrics
        self._behind = client
        self._known = known or {}
        self._begun = {key: asyncio.ensure_future(client.read(key)) for key in keys}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begun, self._begun, self._known = self._begun, {}, {}
        for task in begun.values():
            task.cancel()
        await asyncio.gather(*begun.values(), return_exceptions=True)

    async def read(self, key: str, *, mode: Mode = "default") -> Entry | None:
        """One key as it was when the reading began, if it was read ahead; else, and after the block, now."""
        if mode == "default" and key in self._known:
            return self._known[key]
        begun = self._begun.get(key) if mode == "default" else None
        if begun is None:
            return await self._behind.read(key, mode=mode)
        return await asyncio.shield(begun)
