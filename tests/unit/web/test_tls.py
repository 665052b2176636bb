"""TLS of our own HTTP: who is believed, who is heard, and what a rotation may and may not do."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from farmd.config.sections import WebSection
from farmd.web import tls
from farmd.web.server import listening, serving
from store.certificates import ends_of
from store.errors import CredentialInvalid, InputInvalid
from tests.certificates import authority, caller, encrypt, issue
from tests.credentials import BAD, mend, spoil
from tests.recorders import CountingRecorder

RECORDER = CountingRecorder()
END = ("farmd_web_certificate_end_timestamp_seconds",)
HERE = "DNS:localhost,IP:127.0.0.1"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities; servers here, elsewhere and of yesterday; callers of each authority."""
    folder = tmp_path_factory.mktemp("pki")
    for name in ("ca", "ca-2"):
        authority(folder, name)
        issue(folder, f"server-{name}", HERE, name)
        issue(folder, f"caller-{name}", "DNS:caller", name)
    issue(folder, "elsewhere", "DNS:farm.example.com")
    issue(folder, "yesterday", HERE, days=-1)
    issue(folder, "lasting", HERE, days=20)
    return folder


class Files:
    """The files of a process, which a test replaces as a rotation does."""

    def __init__(self, pki: Path, folder: Path) -> None:
        self.pki = pki
        self.cert, self.key, self.authorities = (
            folder / name for name in ("tls.pem", "tls.key", "callers.pem")
        )
        self.pair("server-ca")
        self.callers("ca")

    def pair(self, name: str) -> None:
        mend(self.cert, (self.pki / f"{name}.pem").read_bytes())
        mend(self.key, (self.pki / f"{name}.key").read_bytes())

    def callers(self, name: str) -> None:
        mend(self.authorities, (self.pki / f"{name}.pem").read_bytes())

    def section(self, *, mutual: bool = False, **more: str) -> WebSection:
        paths = {"tls_cert": str(self.cert), "tls_key": str(self.key)}
        return WebSection(**paths, client_ca=str(self.authorities) if mutual else "", **more)


@pytest.fixture
def files(pki: Path, tmp_path: Path) -> Files:
    return Files(pki, tmp_path)


@contextlib.asynccontextmanager
async def served(section: WebSection) -> AsyncIterator[int]:
    """The port of a server with these files; it says who calls."""

    async def who(request: web.Request) -> web.Response:
        shown = request.get_extra_info("peercert")
        return web.Response(text=dict(shown["subject"][0])["commonName"] if shown else "nobody")

    app = web.Application()
    app.router.add_get("/", who)
    app.router.add_get("/health", who)
    with listening("127.0.0.1", 0) as sock:
        async with serving(app, sock, RECORDER, tls=tls.server_context(section, RECORDER)):
            yield sock.getsockname()[1]


async def ask(port: int, context: ssl.SSLContext, scheme: str = "https") -> str:
    """What a new connection is answered."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{scheme}://localhost:{port}/", ssl=context) as answer,
    ):
        return await answer.text()


async def test_a_caller_that_trusts_the_authority_is_answered_and_others_are_not(files: Files) -> None:
    async with served(files.section()) as port:
        assert await ask(port, caller(files.pki)) == "nobody"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(port, caller(files.pki, trusts="ca-2"))


async def test_nothing_is_served_without_tls_where_a_certificate_is_configured(files: Files) -> None:
    async with served(files.section()) as port:
        with pytest.raises(aiohttp.ClientError):
            await ask(port, caller(files.pki), "http")


async def test_nothing_older_than_tls_1_2_is_spoken(files: Files) -> None:
    async with served(files.section()) as port:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = caller(files.pki)
            context.minimum_version = context.maximum_version = version
            assert await ask(port, context) == "nobody"
        old = caller(files.pki)
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match=r"TLSv1_1"):
            old.minimum_version, old.maximum_version = (
                ssl.TLSVersion.MINIMUM_SUPPORTED,
                ssl.TLSVersion.TLSv1_1,
            )
        with pytest.raises(aiohttp.ClientError):
            await ask(port, old)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_with_client_ca_only_callers_that_it_signed_are_heard(
    files: Files, version: ssl.TLSVersion
) -> None:
    async with served(files.section(mutual=True)) as port:
        for name, heard in (("caller-ca", True), ("caller-ca-2", False), ("yesterday", False), ("", False)):
            context = caller(files.pki, name)
            context.minimum_version = context.maximum_version = version
            if heard:
                assert await ask(port, context) == name
            else:
                with pytest.raises((aiohttp.ClientError, OSError)):
                    await ask(port, context)


async def test_a_new_pair_is_shown_and_new_authorities_count_without_a_restart(files: Files) -> None:
    async with served(files.section(mutual=True)) as port:
        assert await ask(port, caller(files.pki, "caller-ca")) == "caller-ca"
        assert RECORDER.values[END] == ends_of(files.cert.read_text())[0]
        files.pair("lasting")
        assert await ask(port, caller(files.pki, "caller-ca")) == "caller-ca"
        assert RECORDER.values[END] == ends_of(files.cert.read_text())[0]
        files.pair("server-ca-2")
        files.callers("ca-2")
        assert await ask(port, caller(files.pki, "caller-ca-2", trusts="ca-2")) == "caller-ca-2"
        with pytest.raises((aiohttp.ClientError, OSError)):
            await ask(port, caller(files.pki, "caller-ca", trusts="ca-2"))


async def test_a_tls_session_of_a_caller_is_not_resumed_once_its_authority_is_gone(files: Files) -> None:
    """A resumed session shows no certificate, so it would outlive the authority."""
    context = caller(files.pki, "caller-ca")
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connected(port: int, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, session=session) as secure,
        ):
            secure.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert secure.recv(1000).startswith(b"HTTP/1.0 200")
            return secure.session, bool(secure.session_reused)

    async with served(files.section(mutual=True)) as port:
        session, _ = await asyncio.to_thread(connected, port, None)
        assert await asyncio.to_thread(connected, port, session) == (session, True)
        files.callers("ca-2")
        with pytest.raises(OSError, match=r"(?i)alert|EOF|reset"):
            await asyncio.to_thread(connected, port, session)


@pytest.mark.parametrize("how", [*BAD, "another's"])
@pytest.mark.parametrize("which", ["cert", "key", "authorities"])
async def test_whatever_stands_in_a_file_no_process_starts_with_it_and_a_running_one_keeps_the_last_good_ones(
    files: Files, which: str, how: str
) -> None:
    path, section = getattr(files, which), files.section(mutual=True)
    good = path.read_bytes()

    def ruin() -> None:
        if how == "another's":
            mend(
                path, (files.pki / ("caller-ca-2.key" if which != "cert" else "caller-ca-2.pem")).read_bytes()
            )
        else:
            spoil(path, how)

    ruin()
    with pytest.raises(CredentialInvalid, match=r"^web\.\w+: found [^\n]*, expected [^\n]*$"):
        tls.server_context(section, RECORDER)
    mend(path, good)
    async with served(section) as port:
        ruin()
        with capture_logs() as told:
            assert await ask(port, caller(files.pki, "caller-ca")) == "caller-ca"
            assert await ask(port, caller(files.pki, "caller-ca")) == "caller-ca"
        said = [line for line in told if line["event"] == "credential.invalid"]
        assert [line["until_mended"] for line in said] == ["the last good one stays in use"]
        mend(path, good)
        with capture_logs() as told:
            assert await ask(port, caller(files.pki, "caller-ca")) == "caller-ca"
        assert "credential.good_again" in [line["event"] for line in told]


def test_an_encrypted_key_is_refused_and_no_terminal_is_asked(files: Files) -> None:
    encrypt(files.key, files.key)
    with pytest.raises(CredentialInvalid, match=r"^web\.tls_cert: .*its key is encrypted"):
        tls.server_context(files.section(), RECORDER)


@pytest.mark.parametrize(
    ("pair", "callers", "more", "said"),
    [
        ("server-ca", "ca", {}, []),
        ("server-ca", "ca", {"advertise": "localhost"}, []),
        (
            "server-ca",
            "ca",
            {"advertise": "farm-1"},
            ["web.tls_cert: .*not valid for 'farm-1'.*one for 'farm-1'"],
        ),
        ("elsewhere", "ca", {}, ["web.tls_cert: .*not valid for '127.0.0.1'"]),
        ("yesterday", "", {}, ["web.tls_cert: .*certificate has expired.*valid now"]),
        ("server-ca-2", "ca", {}, ["web.client_ca: found no authority for web.tls_cert"]),
    ],
)
def test_what_callers_would_refuse_is_said_in_one_line_each(
    files: Files, pair: str, callers: str, more: dict[str, str], said: list[str]
) -> None:
    files.pair(pair)
    if callers:
        files.callers(callers)
    found = list(tls.doubts(files.section(mutual=bool(callers), **more)))
    assert len(found) == len(said)
    for line, expected in zip(found, said, strict=True):
        assert re.match(f"^{expected}", line), line


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"tls_cert": "/a"}, "web.tls_key: found nothing"),
        ({"tls_key": "/a"}, "web.tls_cert: found nothing"),
        ({"client_ca": "/a"}, "web.tls_cert: found nothing beside web.client_ca"),
        ({}, ""),
    ],
)
def test_keys_that_belong_together_stand_together(section: dict[str, str], said: str) -> None:
    if not said:
        tls.complete(WebSection(**section))
        return
    with pytest.raises(InputInvalid, match=f"^{said}"):
        tls.complete(WebSection(**section))


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("pair", ["server-ca", "elsewhere"])
async def test_the_health_check_of_this_machine_asks_over_tls_whatever_name_the_certificate_has(
    files: Files, mutual: bool, pair: str
) -> None:
    files.pair(pair)
    section = files.section(mutual=mutual)
    async with served(section) as port:
        assert await asyncio.to_thread(tls.ask, section, port) == "ok"
        spoil(files.cert, "empty")
        if not mutual:  # a rotation that failed is no reason to restart what serves on
            assert await asyncio.to_thread(tls.ask, section, port) == "ok"
            return
        with pytest.raises(tls.Unhealthy, match=r"^web\.tls_cert: found nothing"):
            await asyncio.to_thread(tls.ask, section, port)


async def test_a_certificate_in_another_form_is_refused_in_one_line_and_never_replaces_a_good_one(
    files: Files,
) -> None:
    """OpenSSL takes the old name of the form, of which no end can be told."""
    good = files.cert.read_bytes()
    async with served(files.section()) as port:
        mend(files.cert, good.replace(b" CERTIFICATE-", b" X509 CERTIFICATE-"))
        with capture_logs() as lines:
            assert await ask(port, caller(files.pki)) == "nobody"
        assert [line["event"] for line in lines] == ["credential.invalid"]
    with pytest.raises(CredentialInvalid, match=re.escape(str(files.cert))):
        tls.server_context(files.section(), RECORDER)
    with pytest.raises(CredentialInvalid, match=re.escape(str(files.cert))):
        list(tls.doubts(files.section()))
