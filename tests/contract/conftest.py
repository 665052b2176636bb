"""``face`` runs a case against each server; ``pair`` gives an embedded one and the real one together.

The suite runs on the real Consul that tests find, 1.8.7 by default, and with ``FARMD_TEST_CONSUL=1.14`` on
1.14.11, as `make test-all` does too; the embedded server imitates the same version (``dialects.py`` says what
differs). Sources up to 1.22 were read. There the texts of errors go on after their first words: "Permission
denied" names the token and the right that it lacks, a 413 names another page, a 404 says that the path is
unknown. Besides, Consul 1.22 refuses some keys at ``/v1/kv/`` that 1.8 takes: keys with ``~``, and keys that
end like a file's name.
"""

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
