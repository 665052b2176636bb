"""Which cluster answers: the uid of its namespace kube-system, which no cluster shares with another."""

from __future__ import annotations

import msgspec

from farmd.kubernetes.errors import KubernetesError, decoded
from farmd.kubernetes.pace import Priority
from farmd.kubernetes.resources import NAMESPACES
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport

# Answers that do not tell it, and mean that the API server works.
ANSWERED = frozenset({403, 404, 429})


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


async def uid_of(transport: KubernetesTransport, seconds: float, priority: Priority = Priority.READ) -> str:
    """The uid of the cluster; empty where the server answers and does not tell it.

    Raises:
        KubernetesError: no answer within so many seconds, or none of an API server.
    """
    request = ApiRequest("GET", NAMESPACES.path(name="kube-system"), priority=priority)
    try:
        answer = await transport.send(request, seconds)
    except KubernetesError as error:
        if error.status in ANSWERED and error.reason:
            return ""
        raise
    return decoded(answer, _Namespace, str(request)).metadata.uid
