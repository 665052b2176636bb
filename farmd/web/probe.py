"""Checks the health of a farm or an agent on this machine, as a container's health check does.

The check sends HTTP to the configured port of this host, so an image needs no curl.
"""

from __future__ import annotations

import http.client
import json

from farmd.config.sections import WebSection
from farmd.web import tls
from store.errors import CredentialInvalid

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
        context = tls.probe_context(web)
    except CredentialInvalid as error:
        raise Unhealthy(error.message) from error
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def _stalled(body: bytes) -> str:
    try:
        loops = json.loads(body)["stalled"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f"stalled: {', '.join(map(str, loops))}"
