"""What every tier shares: no Consul of the shell's is ever touched, and one throw-away server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import logs, promises, servers
from tests.effort import tries

# A busy machine is slow, and nothing is wrong with it.
settings.register_profile(
    "busy", max_examples=tries(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

logs.configure()

# A shell starts with & what ignores interrupts, nohup what ignores hangups: all programs of tests would, too.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

if servers.external() is None:
    # A variable in somebody's shell must never let tests write to a live cluster.
    for name in [name for name in os.environ if name.startswith("CONSUL_")]:
        del os.environ[name]


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` runs. What waits longest begins first: no worker is left with it at the end."""
    for item in items:
        if promises.in_make_test(item.nodeid) and item.get_closest_marker("whole") is None:
            item.add_marker("everywhere")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test runs the commands of farmctl that promises.toml says of it, and leaves the logging as it was."""
    promises.asked.clear()
    logging = structlog.get_config()
    try:
        yield
    finally:
        structlog.configure(**logging)  # farmctl is quiet but for itself
    assert (missing := promises.not_run(item.nodeid)) == [], f"tests/promises.toml: does not run {missing}"


@pytest.fixture(scope="session")
def consul_dev() -> Iterator[str]:
    """``host:port`` of a real Consul in memory, shared by a run: keep to a prefix of your own."""
    offered = servers.external()
    if offered is not None:
        yield offered
        return
    # Consul counts a connection until its parked query ends, up to a minute after the client has left:
    # many short farms on one server would meet the limit of 200.
    with servers.ConsulServer(dev=True, http_max_conns_per_client=10_000) as server:
        yield server.address
