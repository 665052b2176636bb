"""Clients of a controller, as the demo counts their answers.

They ask as behind a load balancer: only pods that are healthy, and the next pod if one does not answer. A
visit fails if no pod answers it.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

import aiohttp

from farmd import overview
from farmd.dev.scene import answer
from store.consul.client import ConsulClient
from store.keys import Keys
from store.ports import Clock

BETWEEN_SECONDS = 0.02
FRESH_VISITS = 10


class Visits:
    """One visit after the other, each at another pod; ``answers`` counts them by their greeting."""

    def __init__(
        self, client: ConsulClient, keys: Keys, http: aiohttp.ClientSession, clock: Clock, instance: str
    ) -> None:
        self._client, self._keys, self._http, self._clock = client, keys, http, clock
        self._instance = instance
        self.answers: Counter[str] = Counter()
        self.failed = 0

    async def run(self) -> None:
        """Visit until cancelled."""
        while True:
            found = await overview.pods(self._client, self._keys)
            pods = [pod for pod in found.placed if pod.instance == self._instance and pod.healthy]
            for number in range(FRESH_VISITS):
                first = number % max(1, len(pods))
                for pod in chain(pods[first:], pods[:first]):
                    if text := await answer(self._http, pod):
                        self.answers[text.partition(" from ")[0]] += 1
                        break
                else:
                    self.failed += 1
                await self._clock.sleep(BETWEEN_SECONDS)

    def told(self) -> str:
        """How many visits were answered, by which version, and how many were not."""
        told = ", ".join(f"{count} with {greeting!r}" for greeting, count in sorted(self.answers.items()))
        return f"visits answered: {self.answers.total()} ({told}); failed: {self.failed}"
