"""What an API server refuses, as the errors that ``farmctl`` turns into one line and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farmd.kubernetes.errors import AdmissionFailed, Denied, KubernetesError, UnknownOutcome
from store.errors import (
    AccessDenied,
    Conflict,
    InputInvalid,
    NotFound,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)

UNREACHED = "check --kubeconfig, --context or KUBECONFIG"
ADMISSION = "an admission policy or a webhook of the cluster stands in the way: ask its administrator"
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
    """Raise what the API server refuses in the block as an error of the command line; ``where`` is what it
    speaks of, such as a file.
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
