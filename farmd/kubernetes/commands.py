"""What people ask an API server: its farms, whether it accepts a document, and why it refuses one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from farmd import overview
from farmd.commands.mutation import Call, Change, Mutation
from farmd.config.kubernetes import KNATIVE_NAMESPACE
from farmd.kubernetes.contact import uid_of
from farmd.kubernetes.errors import AdmissionFailed, Denied, KubernetesError, UnknownOutcome
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport
from store import codec, operations
from store.errors import (
    AccessDenied,
    Conflict,
    InputInvalid,
    NotFound,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from store.farms import ClusterReport, Member, PinnedCluster
from store.keys import valid_name

# Takes another cluster for the one that a name stands for, at a person's word.


async def accept(call: Call, transport: KubernetesTransport, name: str) -> Mutation:
    """Pin the cluster behind ``transport`` under a name; farms go on there within seconds.

    Raises:
        AccessDenied: its identity may not be read. InputInvalid: no such name is possible.
    """
    key = call.keys.other_cluster(valid_name(name))
    if not (uid := await uid_of(transport, REQUEST_SECONDS)):
        raise AccessDenied(
            f"{transport.access.url}: the uid of the namespace kube-system cannot be read",
            hint="the user needs permission to get that namespace",
        )
    entry = await call.client.read(key, mode="consistent")
    before = PinnedCluster() if entry is None else codec.decode(PinnedCluster, entry.value, key)
    change = Change(
        "kubernetes",
        name,
        name,
        "kubernetes.accept",
        before={"uid": before.uid},
        after={"uid": uid},
        details=(f"it answers at {transport.access.url}",),
        destructive=True,
        object=f"kubernetes/{name}",
    )
    if uid == before.uid:
        return Mutation(change)
    after = msgspec.structs.replace(before, uid=uid, by=call.actor, since=call.clock.now())
    value = codec.encode(after) if entry is None else codec.rewrite(after, entry.value)
    return Mutation(change, (operations.cas(key, value, 0 if entry is None else entry.modify_index),))


# What farms say of the cluster that a person asks: which of their names means it, and by which settings.


class ClusterFarm(NamedTuple):
    """A farm that works in the cluster, its name for the cluster, and its report."""

    farm: Member
    cluster: str
    report: ClusterReport


async def workers(call: Call, transport: KubernetesTransport) -> Sequence[ClusterFarm]:
    """The farms that work in the cluster behind ``transport``; without a readable uid, in any."""
    there = [
        ClusterFarm(farm, name, report)
        for farm in await overview.farms(call.client, call.keys)
        for name, report in sorted(farm.clusters.items())
    ]
    uid = await uid_of(transport, REQUEST_SECONDS) if there else ""
    return [each for each in there if not uid or each.report.uid in ("", uid)]


def knative_namespace(found: Sequence[ClusterFarm]) -> str:
    """The namespace in which most of these farms read Knative's settings. The doctor reports if they
    differ.
    """
    said = [each.report.knative_namespace for each in found if each.report.knative_namespace]
    return max(sorted(set(said)), key=said.count, default=KNATIVE_NAMESPACE)


# What an API server refuses, as the errors that ``farmctl`` turns into one line and an exit code.

UNREACHED = "check --kubeconfig, --context or KUBECONFIG"
ADMISSION = "an admission policy or a webhook of the cluster rejected it: ask its administrator"
UNKNOWN_RESOURCE = (
    "the cluster does not know that resource: farmctl kubernetes install, or its operator, defines it"
)
_AS: dict[int, tuple[type[StoreError], str]] = {
    400: (InputInvalid, ""),
    401: (AccessDenied, UNREACHED),
    403: (AccessDenied, "the user of the kubeconfig may not do this, or a quota or a policy forbids it"),
    404: (NotFound, ""),
    409: (Conflict, ""),
    410: (Conflict, ""),
    413: (InputInvalid, ""),
    422: (InputInvalid, ""),
}


@contextmanager
def refusals(where: str = "") -> Iterator[None]:
    """Turn refusals of the API server in the block into errors of the command line; ``where`` names the
    subject, such as a file.
    """
    try:
        yield
    except KubernetesError as error:
        raise refusal(error, where) from error


def refusal(error: KubernetesError, where: str = "") -> StoreError:
    """The error of the command line for one refusal."""
    kind, hint = _AS.get(error.status, (StoreUnavailable, UNREACHED))
    if isinstance(error, Denied | AdmissionFailed):
        kind, hint = AccessDenied, ADMISSION
    elif isinstance(error, UnknownOutcome):
        kind, hint = OutcomeUnknown, ""
    elif error.status == 404 and not error.reason:
        hint = UNKNOWN_RESOURCE
    brief = error.reason and (error.status in _AS or kind is AccessDenied)
    text = error.text if brief else error.message
    return kind(f"{where}: {text}" if where else text, **({"hint": hint} if hint else {}))
