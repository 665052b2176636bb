"""Checks when the certificates end that farmctl meets here: Consul's, those of its servers, and its own.

Farms and agents on other machines may have others; the doctor sees only those of this machine.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from urllib.parse import urlsplit

from farmd.doctor.model import Finding, Report
from store import certificates
from store.consul.environment import Address
from store.credentials import content
from store.errors import CredentialInvalid, InputInvalid
from store.ports import Clock
from store.times import rfc3339
from store.words import lasting

SOON_SECONDS = 30 * 86400.0
ANSWER_SECONDS = 5.0


async def check(consul: Address, environ: Mapping[str, str], clock: Clock) -> Report:
    """When each certificate ends, as facts; findings of those that end within 30 days.

    Raises:
        CredentialInvalid: a file that a variable of Consul names is not usable.
    """
    facts: dict[str, str] = {}
    findings: list[Finding] = []
    async for what, end in _all(consul, environ, clock):
        if isinstance(end, str):
            facts[f"certificate of {what}"] = f"unknown: {end}"
            continue
        facts[f"certificate of {what}"] = f"until {rfc3339(end)}"
        findings += judge(what, end, clock.now())
    return Report(facts, tuple(findings))


def judge(what: str, end: float, now: float) -> Iterator[Finding]:
    """What is wrong with a certificate that ends then, in seconds since the epoch."""
    left = end - now
    if left < SOON_SECONDS:
        when = f"ends in {lasting(left)}, at {rfc3339(end)}" if left > 0 else f"ended {lasting(-left)} ago"
        yield Finding(
            "certificate-ends",
            what,
            f"its certificate {when}",
            "renew it; farms, agents and farmctl read certificates again when their files change",
        )


async def _all(
    consul: Address, environ: Mapping[str, str], clock: Clock
) -> AsyncIterator[tuple[str, float | str]]:
    """Each certificate's place with its end, or with why that is not known."""
    if consul.scheme == "https":
        name = consul.tls.server_name or consul.host
        yield str(consul), await _shown(consul.host, consul.port, consul.tls.context(), name)
    if consul.tls.certificate:
        yield consul.tls.certificate, _first(content("CONSUL_CLIENT_CERT", consul.tls.certificate))
    if environ.get("KUBECONFIG"):
        async for found in _kubernetes(environ, clock):
            yield found


async def _kubernetes(environ: Mapping[str, str], clock: Clock) -> AsyncIterator[tuple[str, float | str]]:
    from farmd.kubernetes.access import access  # only where there is a cluster

    try:
        found = access(environ, clock)
        own, tls = found.credentials.certificate(), (await found.credentials.login()).tls
    except (CredentialInvalid, InputInvalid) as error:
        yield f"KUBECONFIG {environ['KUBECONFIG']}", error.message
        return
    if own:
        yield found.origin, _first(own)
    if isinstance(tls, ssl.SSLContext):
        parts = urlsplit(found.url)
        host = parts.hostname or ""
        if found.proxy:
            yield found.url, "it is reached through a proxy"
        else:
            yield found.url, await _shown(host, parts.port or 443, tls, found.server_name or host)


def _first(pem: bytes) -> float | str:
    try:
        return certificates.first_end(pem)
    except ValueError:
        return "found no certificate"


async def _shown(host: str, port: int, context: ssl.SSLContext, name: str) -> float | str:
    try:
        return await certificates.served(host, port, context, name, ANSWER_SECONDS)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError as error:
        return error.strerror or f"no answer within {ANSWER_SECONDS:g} s"
    except ValueError as error:
        return str(error)
