"""``farmctl pod exec`` from another machine: over TLS alone, with certificates and keys that are good now."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from farmd.agent.access import TOLERANCE_SECONDS
from store.access import LIFE_SECONDS, REFUSED
from tests.agents import CLOCK, Agents
from tests.certificates import authority, caller, issue
from tests.integration.test_pod_exec import PATH, Fleet, fleet_of

WORDS = ("pod", "exec", "n1/web", "--", "sh", "-c", "echo $GREETING; exit 4")


@pytest.fixture(scope="module")
def host() -> str:
    """An address of this machine by which a connection does not come from loopback."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory, host: str) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    for name in ("ca", "other"):
        authority(folder, name)
        issue(folder, f"caller-{name}", "DNS:caller", name)
    issue(folder, "agent", f"IP:{host}")
    issue(folder, "yesterday", f"IP:{host}", days=-1)
    return folder


def served(host: str, pki: Path | None, name: str = "agent", *, callers: bool = False) -> dict[str, str]:
    """The settings of an agent for other machines."""
    found = {"FARMD_WEB__BIND": host, "FARMD_WEB__ADVERTISE": host}
    if pki is not None:
        found |= {"FARMD_WEB__TLS_CERT": f"{pki}/{name}.pem", "FARMD_WEB__TLS_KEY": f"{pki}/{name}.key"}
    return found | ({"FARMD_WEB__CLIENT_CA": f"{pki}/ca.pem"} if callers else {})


async def told(fleet: Fleet, pki: Path, trusts: str, shows: str = "") -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command by somebody with these files."""
    files = {"FARMCTL_CACERT": f"{pki}/{trusts}.pem"}
    if shows:
        files |= {"FARMCTL_CLIENT_CERT": f"{pki}/{shows}.pem", "FARMCTL_CLIENT_KEY": f"{pki}/{shows}.key"}
    ctl = replace(fleet, farmctl=replace(fleet.farmctl, variables=files)).ctl
    done = await ctl(*WORDS)
    return done.code, done.out, done.err


async def status(
    fleet: Fleet, url: str, context: ssl.SSLContext | bool, late: float = 0.0
) -> tuple[int, str]:
    """How the agent answers a key that was made ``late`` seconds ago, by its maker's clock."""

    class Shifted:
        mono, sleep = CLOCK.mono, CLOCK.sleep

        def now(self) -> float:
            return CLOCK.now() - late

    headers = await replace(fleet, call=replace(fleet.call, clock=Shifted())).key("true")
    async with aiohttp.ClientSession() as http:
        try:
            async with http.ws_connect(url + PATH, headers=headers, ssl=context):
                return 101, ""
        except aiohttp.WSServerHandshakeError as error:
            return error.status, (error.headers or {}).get(REFUSED, "")


async def test_off_loopback_no_command_runs_without_tls(rig: Agents, tmp_path: Path, host: str) -> None:
    async with fleet_of(rig, tmp_path, **served(host, None)) as fleet:
        url = fleet.url.replace("127.0.0.1", host)
        done = await fleet.ctl(*WORDS)
        assert done.code == 7
        assert done.err.splitlines()[0] == (
            f"farmctl: node 'n1': its agent has no TLS at {url}, expected https:// off loopback"
        )
        why = "the connection has no TLS: set web.tls_cert and web.tls_key of this agent"
        assert await status(fleet, url, context=True) == (403, why)


async def test_over_tls_the_right_people_run_commands_with_keys_of_now(
    rig: Agents, tmp_path: Path, host: str, pki: Path
) -> None:
    async with fleet_of(rig, tmp_path, **served(host, pki)) as fleet:
        assert await told(fleet, pki, "ca") == (4, "hello\n", "")
        code, _, why = await told(fleet, pki, "other")
        assert (code, "its certificate is refused" in why) == (7, True)
        url = fleet.url.replace("http://127.0.0.1", f"https://{host}")
        for late, expected in (
            (0.0, (101, "")),
            (TOLERANCE_SECONDS, (101, "")),
            (-TOLERANCE_SECONDS + 5, (101, "")),
            (LIFE_SECONDS + TOLERANCE_SECONDS + 30, (403, "Farmd-Key: the key ended 90 s ago")),
            (-TOLERANCE_SECONDS - 60, (403, "Farmd-Key: the key begins in 120 s")),
        ):
            found, said = await status(fleet, url, caller(pki), late)
            assert (found, said.partition(" by")[0]) == expected
            assert not said or said.endswith("by this node's clock")


async def test_where_callers_need_a_certificate_a_key_alone_opens_nothing(
    rig: Agents, tmp_path: Path, host: str, pki: Path
) -> None:
    async with fleet_of(rig, tmp_path, **served(host, pki, callers=True)) as fleet:
        assert await told(fleet, pki, "ca", "caller-ca") == (4, "hello\n", "")
        for shows in ("", "caller-other"):
            code, out, why = await told(fleet, pki, "ca", shows)
            assert (code, out) == (7, "")
            assert "its agent does not answer at https://" in why
            assert "FARMCTL_CLIENT_CERT your own" in why


async def test_a_certificate_that_ended_is_not_believed(
    rig: Agents, tmp_path: Path, host: str, pki: Path
) -> None:
    async with fleet_of(rig, tmp_path, **served(host, pki, "yesterday")) as fleet:
        code, _, why = await told(fleet, pki, "ca")
        assert (code, "certificate has expired" in why) == (7, True)
