"""``face`` runs a case against each server; ``pair`` gives an embedded one and the real one together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests import servers
from tests.contract import faces
from tests.contract.faces import Face


@pytest.fixture(params=faces.FACES)
async def face(request: pytest.FixtureRequest) -> AsyncIterator[Face]:
    """Each server in turn. The real one is started only for its own cases."""
    if request.param == "embedded-inprocess":
        opened = faces.embedded_inprocess()
    elif request.param == "embedded-http":
        opened = faces.embedded_http()
    else:
        opened = faces.over_http(faces.REAL, request.getfixturevalue("consul_dev"))
    async with opened as each:
        yield each


@pytest.fixture
def consul_own() -> Iterator[str]:
    """``host:port`` of a real Consul in memory that this case alone uses, empty."""
    with servers.ConsulServer(dev=True) as server:
        yield server.address
