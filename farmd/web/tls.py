"""TLS of a process's own HTTP: its certificate, its callers' authorities, and a probe of both."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator

import structlog

from farmd.config.sections import WebSection
from store.certificates import first_end
from store.consul.environment import load_authorities, load_pair, whole_pair
from store.credentials import CredentialFiles, content, invalid
from store.errors import CredentialInvalid, refuse
from store.ports import Recorder
from store.times import rfc3339

# TLS of a process's own HTTP: its certificate, and the authorities of its callers' certificates.
#
# Each new connection takes the files as they are then, so that they rotate without a restart; one that
# stands goes on. What must never break: where a certificate is configured nothing is served without TLS, no
# unusable file replaces the last good ones, and where ``client_ca`` is set nobody is heard without a
# certificate of its authorities. A session of TLS is never resumed across a change of the files.

log = structlog.get_logger()
CERTIFICATE, KEY, AUTHORITIES = "web.tls_cert", "web.tls_key", "web.client_ca"
FLIGHTS = 4
"""A handshake takes no more turns than these."""


class ServerContext(ssl.SSLContext):
    """A server's context that hands each connection to the context of the files as they are then."""

    files: CredentialFiles[ssl.SSLContext]

    def look(self) -> None:
        """Read the files again now, if they changed; what is wrong with them is logged."""
        self.files()

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As asyncio calls it for each connection."""
        return self.files().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def server_context(section: WebSection, recorder: Recorder) -> ServerContext | None:
    """What to serve with; None: without TLS. What callers would refuse is logged, its end is a metric.

    Raises:
        CredentialInvalid: a file is not usable now.
    """
    if not section.tls_cert:
        return None

    def read() -> ssl.SSLContext:
        context = _context(section)
        for line in doubts(section):
            log.warning("web.certificate_doubted", reason=line)
        end = _end(section)
        recorder.set("farmd_web_certificate_end_timestamp_seconds", end)
        log.info("web.certificate_read", path=section.tls_cert, until=rfc3339(end))
        return context

    made = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    made.files = CredentialFiles([section.tls_cert, section.tls_key, section.client_ca], read)
    made.look()
    return made


def complete(section: WebSection) -> None:
    """Check what no single key shows.

    Raises:
        InputInvalid: a certificate without its key, or authorities without a certificate.
    """
    whole_pair((CERTIFICATE, section.tls_cert), (KEY, section.tls_key))
    if section.client_ca and not section.tls_cert:
        refuse(
            CERTIFICATE, f"nothing beside {AUTHORITIES}", "a path: without TLS clients present no certificate"
        )


def host(section: WebSection, bound: str) -> str:
    """The name under which others reach this process: the host's if it listens on all addresses."""
    everywhere = bound in ("0.0.0.0", "::")
    return section.advertise or (socket.gethostname() if everywhere else bound)


def doubts(section: WebSection) -> Iterator[str]:
    """One line for each reason why callers would refuse this process, or it itself: expired, another name.

    Raises:
        CredentialInvalid: a file is not usable.
    """
    if not section.tls_cert:
        return
    name, expected = host(section, section.bind), "valid now and signed for a server's use"
    if why := _refused(_context(section, asks=False), _caller(section, names=True), name):
        found = f"a certificate that clients refuse ({why})"
        yield f"{CERTIFICATE}: found {found}, expected one for {name!r}, {expected}"
    if section.client_ca and (why := _refused(_context(section), _caller(section), name)):
        found = f"no authority for {CERTIFICATE} ({why})"
        yield f"{AUTHORITIES}: found {found}, expected one: farmd health shows that certificate"


def probe_context(section: WebSection) -> ssl.SSLContext:
    """For a health check of this very machine, which shows the process's own certificate.

    It believes whoever answers: it sends no secret, and a restart mends no certificate that has expired.

    Raises:
        CredentialInvalid: a file is not usable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if section.client_ca:
        load_pair(context, (CERTIFICATE, section.tls_cert), (KEY, section.tls_key))
    return context


def _context(section: WebSection, *, asks: bool = True) -> ssl.SSLContext:
    """A server's context of the files as they are now; ``asks``: as ``client_ca`` tells."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(context, (CERTIFICATE, section.tls_cert), (KEY, section.tls_key))
    _end(section)
    if section.client_ca and asks:
        load_authorities(context, AUTHORITIES, section.client_ca)
        if not context.cert_store_stats()["x509_ca"]:
            raise invalid(AUTHORITIES, f"no authority in {section.client_ca!r}", "PEM of at least one")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _end(section: WebSection) -> float:
    """When the certificate ends, or one that it comes with, in seconds since the epoch.

    Raises:
        CredentialInvalid: a certificate in another form, which OpenSSL takes all the same.
    """
    try:
        return first_end(content(CERTIFICATE, section.tls_cert))
    except ValueError as error:
        path, expected = repr(section.tls_cert), "PEM that begins with BEGIN CERTIFICATE"
        raise invalid(CERTIFICATE, f"another form in {path}", expected) from error


def _caller(section: WebSection, *, names: bool = False) -> ssl.SSLContext:
    """A caller that trusts this very certificate, for any name or by its ``names``, and shows it if asked."""
    context = probe_context(section)
    context.verify_mode, context.check_hostname = ssl.CERT_REQUIRED, names
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    load_authorities(context, CERTIFICATE, section.tls_cert)
    return context


def _refused(server: ssl.SSLContext, caller: ssl.SSLContext, name: str) -> str:
    """Why one of the two refuses the other, tried by a handshake in memory; empty: neither does."""
    to_server, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        caller.wrap_bio(to_caller, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_caller, server_side=True),
    )
    try:
        for _ in range(FLIGHTS):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason
    return ""


# Checks the health of a farm or an agent on this machine, as a container's health check does.
#
# The check sends HTTP to the configured port of this host, so an image needs no curl.

TIMEOUT_SECONDS = 4.0
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Unhealthy(Exception):
    """The process does not answer, or reports a stalled loop; one line for people."""


def ask(web: WebSection, port: int, *, timeout: float = TIMEOUT_SECONDS) -> str:
    """One line from a healthy process's ``/health``; ``timeout`` in seconds bounds each step.

    Raises:
        Unhealthy: the process does not answer, or a loop is stalled.
    """
    host = EVERYWHERE.get(web.bind, web.bind)
    connection = _connection(web, host, port, timeout)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        status, body = answer.status, answer.read(65_536)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unhealthy(f"{host}:{port}: {reason}") from error
    finally:
        connection.close()
    if status == 200:
        return "ok"
    raise Unhealthy(f"{host}:{port}: {_stalled(body) or f'answered {status}'}")


def _connection(web: WebSection, host: str, port: int, timeout: float) -> http.client.HTTPConnection:
    if not web.tls_cert:
        return http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        context = probe_context(web)
    except CredentialInvalid as error:
        raise Unhealthy(error.message) from error
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def _stalled(body: bytes) -> str:
    try:
        loops = json.loads(body)["stalled"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f"stalled: {', '.join(map(str, loops))}"
