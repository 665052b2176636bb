"""A job that is deleted while its worker has it in hand: the API server refuses what is written, and the
worker does not crash over what its farm has forgotten meanwhile.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from farmd.jobs.facts import Plan
from farmd.kubernetes.jobs import facts
from farmd.kubernetes.jobs.kind import KubeJobWorker
from farmd.kubernetes.jobs.report import ResourceStatus
from tests.virtual import VirtualClock


class Forgotten(KubeJobWorker):
    """The worker of a job that its farm knows no more."""

    def __init__(self) -> None:
        context = SimpleNamespace(cluster="c", clock=VirtualClock())
        self.kind: Any = SimpleNamespace(context=context)
        self.claim: Any = SimpleNamespace(item="uid", index=7)
        self.status: Any = SimpleNamespace(incidents=SimpleNamespace(open=tuple), write=self._written)
        self.index = 0
        self._shared: Any = SimpleNamespace(found=SimpleNamespace(known={}))
        self._fenced, self._differs = 0, -math.inf

    async def _written(self, *_: object) -> None:
        """A status in Consul, which nobody reads here."""


async def test_a_status_is_written_to_where_the_job_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, written = SimpleNamespace(data=SimpleNamespace(dated=False), generation=0), list[object]()

    async def write_status(to: object, job: object, after: ResourceStatus) -> object:
        assert after.claim == "c/7"
        written.append(to)
        return job

    monkeypatch.setattr(facts, "status_after", lambda *_: ResourceStatus(restarts=1))
    monkeypatch.setattr(facts, "write_status", write_status)
    snapshot: Any = SimpleNamespace(unit=unit, job=object(), status=ResourceStatus())
    await Forgotten().report(snapshot, Plan())
    assert written == [unit]
