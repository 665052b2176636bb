"""TLS: the server is checked, the client's certificate is really presented, bad files are one line."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from pathlib import Path

import pytest

from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.errors import CredentialInvalid, StoreUnavailable
from store.ports import Lane, Request, Response
from tests.certificates import authority, encrypt, hashed, issue
from tests.credentials import BAD, mend, spoil
from tests.scripted_consul import Scripted


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, server.pem (localhost), other.pem (consul.internal), client.pem."""
    folder = tmp_path_factory.mktemp("pki")
    authority(folder)
    issue(folder, "server", "DNS:localhost,IP:127.0.0.1")
    issue(folder, "other", "DNS:consul.internal")
    issue(folder, "client", "DNS:farm-1")
    return folder


def server_context(pki: Path, name: str = "server", *, ask_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / f"{name}.pem", pki / f"{name}.key")
    if ask_client:
        context.load_verify_locations(pki / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


CLIENT = """
import asyncio, sys
from store.consul.authorities import aiohttp

async def ask():
    async with aiohttp.ClientSession() as http, http.get(sys.argv[1]) as answer:
        print(answer.status)

asyncio.run(ask())
"""


async def asked_by_a_process(address: str, authorities: str) -> tuple[str, str]:
    """What a fresh process, whose machine has these authorities, writes to stdout and stderr."""
    env = {**os.environ, "SSL_CERT_FILE": authorities, "SSL_CERT_DIR": "/nonexistent"}
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, address, env=env, **pipes)
    out, err = await process.communicate()
    return out.decode(), err.decode()


async def ask(address: str, env: dict[str, str]) -> Response:
    async with HttpTransport(Address.from_environment(env, address)) as transport:
        return await transport.send(Request("GET", "/v1/kv/a", lane=Lane.READ), 10)


async def test_a_server_that_the_given_authority_signed_is_trusted(pki: Path) -> None:
    async with Scripted(tls=server_context(pki)) as consul:
        assert (await ask(consul.address, {"CONSUL_CACERT": str(pki / "ca.pem")})).status == 200


async def test_an_authority_may_be_a_folder(pki: Path, tmp_path: Path) -> None:
    ca = (pki / "ca.pem").read_bytes()
    (tmp_path / hashed(ca)).write_bytes(ca)
    async with Scripted(tls=server_context(pki)) as consul:
        assert (await ask(consul.address, {"CONSUL_CAPATH": str(tmp_path)})).status == 200


async def test_an_unknown_authority_is_refused_before_anything_is_sent(pki: Path) -> None:
    async with Scripted(tls=server_context(pki)) as consul:
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            await ask(consul.address, {})
        assert consul.seen == []


async def test_a_server_without_tls_is_told_in_words() -> None:
    async with Scripted() as consul:
        address = consul.address.removeprefix("http://")
        with pytest.raises(StoreUnavailable) as error:
            await ask(f"https://{address}", {})
        assert error.value.message == f"https://{address}: cannot connect: it does not speak TLS"


async def test_an_unknown_authority_is_accepted_only_when_checking_is_switched_off(pki: Path) -> None:
    async with Scripted(tls=server_context(pki)) as consul:
        assert (await ask(consul.address, {"CONSUL_HTTP_SSL_VERIFY": "false"})).status == 200


async def test_an_authority_of_the_machine_is_trusted_though_it_is_loaded_late(pki: Path) -> None:
    async with Scripted(tls=server_context(pki)) as consul:
        assert await asked_by_a_process(consul.address, str(pki / "ca.pem")) == ("200\n", "")


async def test_what_no_authority_of_the_machine_signed_is_refused(pki: Path) -> None:
    async with Scripted(tls=server_context(pki)) as consul:
        _, err = await asked_by_a_process(consul.address, "/dev/null")
        assert "CERTIFICATE_VERIFY_FAILED" in err
        assert consul.seen == []


async def test_a_certificate_for_another_name_is_refused(pki: Path) -> None:
    async with Scripted(tls=server_context(pki, "other")) as consul:
        with pytest.raises(StoreUnavailable):
            await ask(consul.address, {"CONSUL_CACERT": str(pki / "ca.pem")})
        assert consul.seen == []


async def test_the_server_name_of_the_environment_is_what_is_checked(pki: Path) -> None:
    env = {"CONSUL_CACERT": str(pki / "ca.pem"), "CONSUL_TLS_SERVER_NAME": "consul.internal"}
    async with Scripted(tls=server_context(pki, "other")) as consul:
        assert (await ask(consul.address, env)).status == 200


async def test_the_client_certificate_is_really_presented(pki: Path) -> None:
    """The library's own asyncio client drops it."""
    async with Scripted(tls=server_context(pki, ask_client=True)) as consul:
        assert (await ask(consul.address, mutual(pki))).status == 200
        certificate = consul.seen[0].certificate
        assert certificate is not None
        assert certificate["subject"] == ((("commonName", "client"),),)


async def test_ssl_by_variable_alone_makes_the_address_https(pki: Path) -> None:
    async with Scripted(tls=server_context(pki)) as consul:
        env = {"CONSUL_CACERT": str(pki / "ca.pem"), "CONSUL_HTTP_SSL": "true"}
        assert (await ask(consul.address.removeprefix("https://"), env)).status == 200


def mutual(folder: Path) -> dict[str, str]:
    """Client and server check one another with the files of this folder."""
    return {
        "CONSUL_CACERT": str(folder / "ca.pem"),
        "CONSUL_CLIENT_CERT": str(folder / "client.pem"),
        "CONSUL_CLIENT_KEY": str(folder / "client.key"),
    }


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("variable", ["CONSUL_CACERT", "CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY"])
async def test_whatever_stands_in_a_certificates_file_its_holder_waits_or_keeps_the_last_good_one(
    pki: Path, tmp_path: Path, variable: str, how: str
) -> None:
    env = mutual(tmp_path)
    for path in map(Path, env.values()):
        mend(path, (pki / path.name).read_bytes())
    path = Path(env[variable])
    spoil(path, how)
    async with (
        Scripted(tls=server_context(pki, ask_client=True)) as consul,
        HttpTransport(Address.from_environment(env, consul.address)) as transport,
    ):

        async def ask() -> int:
            return (await transport.send(Request("GET", "/v1/kv/a", lane=Lane.READ), 10)).status

        with pytest.raises(CredentialInvalid, match=r"^CONSUL_C.*: found .*, expected [^\n]*$") as bad:
            await ask()
        assert variable in bad.value.message or "CONSUL_CLIENT_CERT" in bad.value.message
        assert consul.seen == []
        mend(path, (pki / path.name).read_bytes())
        assert await ask() == 200
        spoil(path, how)
        assert await ask() == 200


async def test_a_certificate_that_was_replaced_is_presented_without_a_restart(
    pki: Path, tmp_path: Path
) -> None:
    env = mutual(tmp_path)
    issue(pki, "successor", "DNS:farm-1")
    for path in map(Path, env.values()):
        mend(path, (pki / path.name).read_bytes())
    async with (
        Scripted(tls=server_context(pki, ask_client=True)) as consul,
        HttpTransport(Address.from_environment(env, consul.address)) as transport,
    ):
        for name in ("client", "successor"):
            mend(tmp_path / "client.pem", (pki / f"{name}.pem").read_bytes())
            mend(tmp_path / "client.key", (pki / f"{name}.key").read_bytes())
            await transport.send(Request("GET", "/v1/kv/a", lane=Lane.READ), 10)
        presented = [seen.certificate["subject"] for seen in consul.seen if seen.certificate is not None]
        assert presented == [((("commonName", "client"),),), ((("commonName", "successor"),),)]


async def test_an_encrypted_key_is_refused_and_no_terminal_is_asked(pki: Path, tmp_path: Path) -> None:
    env = mutual(pki) | {"CONSUL_CLIENT_KEY": str(tmp_path / "client.key")}
    encrypt(pki / "client.key", tmp_path / "client.key")
    with pytest.raises(CredentialInvalid, match=r"^CONSUL_CLIENT_CERT: .*its key is encrypted"):
        await ask("https://localhost:1", env)


async def test_a_folder_of_authorities_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialInvalid, match=r"^CONSUL_CAPATH: found .*nowhere.*expected readable PEM$"):
        await ask("https://localhost:1", {"CONSUL_CAPATH": str(tmp_path / "nowhere")})
