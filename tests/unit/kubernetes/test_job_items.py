"""Which jobs of a cluster are work for farms, and when a job that is missing is proven to be gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from farmd.kubernetes.items import JobItems
from farmd.kubernetes.store import ObjectStore
from farmd.kubernetes.unit import JobObject


def unit(**fields: Any) -> Any:
    return SimpleNamespace(jobs=ObjectStore(), groups=None, synced=True, **fields)


def job(**policy: Any) -> JobObject:
    meta = {"namespace": "ml", "name": "bert", "uid": "u1", "resourceVersion": "7"}
    return msgspec.convert(
        {"metadata": meta, "spec": msgspec.Raw(msgspec.json.encode({"runPolicy": policy}))}, JobObject
    )


@pytest.mark.parametrize(
    ("manager", "work"), [("", True), ("farmd.io/farmd", True), ("kueue.x-k8s.io/multikueue", False)]
)
def test_a_job_that_another_controller_manages_is_no_item(manager: str, work: bool) -> None:
    of = unit()
    items = JobItems([of], ())
    of.jobs.seen(job(managedBy=manager))
    assert ("u1" in items.items()) is work


def test_a_doubt_keeps_no_lock_of_a_job_whose_deletion_was_told() -> None:
    of = unit(informers=[SimpleNamespace(doubt="404")])
    assert JobItems([of], ()).trusted()
    of.synced = False
    assert not JobItems([of], ()).trusted()
