"""What people see of a plan, and of a deployment that lasts."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.deploy import view
from farmd.deploy.operations import Plan
from farmd.deploy.preview import _images, summary
from farmd.deploy.project import ProjectPlan
from store.deployments import Deployment, DeploymentStatus, Goal, ServiceProgress
from store.services import Version

D1, D2 = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("web:1.4", "web:1.5", "web:1.4 -> :1.5"),
        (f"web:1.4@{D1}", f"web:1.5@{D2}", "web:1.4 -> :1.5 (sha256:11111111 -> 22222222)"),
        (f"web@{D1}", f"web@{D2}", "web:latest (sha256:11111111 -> 22222222)"),
        (f"web:1@{D1}", "web:2", "web:1 -> :2 (sha256:11111111 -> unpinned)"),
        ("web:1", f"web:1@{D1}", "web:1 (unpinned -> 11111111)"),
        (f"web:1@{D1}", f"other:1@{D1}", "web:1@sha256:11111111 -> other:1@sha256:11111111"),
    ],
)
def test_an_image_that_changes_is_told_by_what_differs(old: str, new: str, told: str) -> None:
    assert _images(old, new) == told


def test_pods_without_a_place_are_counted_as_something_to_do() -> None:
    short = Plan(service_id="1web", service_name="web", short=("1 of 2 pods find no machine",))
    assert summary(ProjectPlan(services=(short,)), {}) == "no place for all pods of 1 service"
    assert (
        summary(ProjectPlan(services=(Plan(service_id="1web"),)), {}) == "all services are as they should be"
    )


def goal(name: str, *, gone: bool = False) -> Goal:
    version = Version(manifest="m", replicas=3)
    wanted = None if gone else version
    return Goal(service=f"1{name}", name=name, owner=f"rcs/2{name}", wanted=wanted, previous=version)


def said(phase: str, **fields: Any) -> ServiceProgress:
    return ServiceProgress(name="web", phase=phase, **fields)


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        (None, "waiting"),
        (
            ServiceProgress(name="web", reason="waits until db is healthy"),
            "waiting: waits until db is healthy",
        ),
        (
            said("rolling", wanted=3, proven=1, outdated=2),
            "1/3 healthy, 2 to change",
        ),
        (
            said("rolling", back=True, wanted=3, proven=2, outdated=1),
            "rolling back, 2/3 healthy, 1 to change",
        ),
        (said("released", wanted=3, proven=3), "3/3 healthy"),
    ],
)
def test_a_service_is_told_in_counts(progress: ServiceProgress | None, told: str) -> None:
    assert view.told(goal("web"), progress) == told


def test_a_service_that_goes_is_told_so() -> None:
    progress = said("rolling", outdated=2)
    assert view.told(goal("web", gone=True), progress) == "removing, 2 to remove"
    assert view.done(goal("web", gone=True), "") == "removed"


def test_a_reason_of_a_service_is_told_once() -> None:
    record = Deployment(id="0123", name="0123", goals=[goal("db"), goal("web")])
    waits = ServiceProgress(name="db", phase="rolling", wanted=3, reason="waits")
    status = DeploymentStatus(state="progressing", phase="rolling", services=(waits,))
    assert view.lines(record, status, "progressing", "db: waits") == [
        "deployment 0123  rolling, 0 of 1 services",
        "  db   0/3 healthy: waits",
        "  web  waiting",
    ]
    assert view.lines(record, None, "unowned", "no farm is running")[-1] == "  no farm is running"
