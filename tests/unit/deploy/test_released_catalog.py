"""What a release makes of a service's place in Consul's catalogue: what its file says, and takes back."""

from __future__ import annotations

from typing import Any, cast

import pytest

from farmd.deploy.facts import ServiceFacts
from farmd.deploy.writes import revised
from store.deployments import Deployment, Goal, GoalState
from store.services import Catalog, Service, Version

FILE, HAND, NONE = Catalog(tags=["file"]), Catalog(tags=["hand"]), None


def version(image: str, catalog: Catalog | None) -> Version:
    return Version(manifest=image, catalog=catalog)


def released(service: Service, wanted: Version, *, back: bool = False) -> Service:
    """A service after the release of a deployment to ``wanted``."""
    goal = Goal(service="s", name="web", owner="rcs/1", wanted=wanted, previous=service.version)
    sight = ServiceFacts(
        said=goal,
        state=GoalState(phase="taken", back=back),
        version=service.version if back else wanted,
        manifest=None,
        owner=None,
        pods={},
        hooks={},
        goal=cast("Any", None),
    )
    return revised(service, Deployment(id="d", name="d", goals=[goal]), wanted, sight, 0.0)


@pytest.mark.parametrize(
    ("said", "stands", "next_", "back", "expected"),
    [
        (NONE, NONE, FILE, False, FILE),
        (FILE, FILE, NONE, False, NONE),
        (FILE, HAND, FILE, False, HAND),
        (NONE, HAND, NONE, False, HAND),
        (NONE, HAND, FILE, False, FILE),
        (NONE, NONE, FILE, True, NONE),
        (FILE, FILE, NONE, True, FILE),
    ],
)
def test_it_becomes_what_the_file_says_and_what_a_command_says_stays_where_no_file_speaks(
    said: Catalog | None,
    stands: Catalog | None,
    next_: Catalog | None,
    back: bool,
    expected: Catalog | None,
) -> None:
    service = Service(id="s", name="web", version=version("1", said), revision=1, catalog=stands)
    assert released(service, version("2", next_), back=back).catalog == expected


def test_the_first_version_of_a_service_brings_it() -> None:
    assert released(Service(id="s", name="web"), version("1", FILE)).catalog == FILE
