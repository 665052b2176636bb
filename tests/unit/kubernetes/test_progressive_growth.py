"""When a newcomer last grew: what counts, and what does not."""

from __future__ import annotations

import dataclasses

from farmd.kubernetes.knative.facts import Snapshot
from farmd.kubernetes.knative.scales import Growth
from tests.knative_worlds import autoscaler, named, orchestrator, service, target


def at(now: float, pods: int, name: str = "web-00002") -> Snapshot:
    """A newcomer with so many pods at that time."""
    record = orchestrator(targets=(target(name),))
    return Snapshot(
        service=service(), orchestrator=record, autoscalers=named(autoscaler(name, pods)), now=now
    )


def test_pods_that_come_back_after_they_went_are_no_growth() -> None:
    growth = Growth(0.0)
    seen = [growth.seen(at(float(now), pods)).risen for now, pods in enumerate([1, 2, 0, 1, 2, 3], 1)]
    assert seen == [1.0, 2.0, 2.0, 2.0, 2.0, 6.0]


def test_another_newcomer_begins_anew() -> None:
    growth = Growth(0.0)
    growth.seen(at(1.0, 5))
    assert growth.seen(at(2.0, 0, "web-00003")).risen == 2.0
    assert growth.seen(at(3.0, 1, "web-00003")).risen == 3.0


def test_nothing_else_of_a_service_is_changed() -> None:
    found = at(1.0, 1)
    assert dataclasses.replace(Growth(0.0).seen(found), risen=0.0) == found
