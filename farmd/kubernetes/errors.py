"""What an API server refuses, by the reason of its Status; the message is the server's own text.

After ``Unavailable`` and ``TooManyRequests`` nothing was written. After ``UnknownOutcome`` the write may have
happened: read the object before writing again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeVar

import msgspec

from farmd.runtime.errors import FarmdError
from store.errors import Retry
from store.ports import Clock

LONGEST_TEXT = 500
T = TypeVar("T")


class KubernetesError(FarmdError):
    """Root of the errors of an API server; ``status`` is 0 without an answer, ``causes`` are by field.

    ``text`` is the server's message without the request.
    """

    code: ClassVar[str] = "kubernetes_error"
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: Mapping[str, str] | None = None,
        text: str = "",
    ) -> None:
        super().__init__(message, status=status, reason=reason)
        self.status = status
        self.reason = reason
        self.causes = causes or {}
        self.text = text


class Unavailable(KubernetesError):
    """The request never left, or a read was not answered, or answered with a server's error."""

    code = "kubernetes_unavailable"
    retry = Retry.BACKOFF


class TooManyRequests(Unavailable):
    """429 until the request's time was over; the server has not looked at the request."""

    code = "kubernetes_throttled"


class Unauthorized(Unavailable):
    """401: the credential is not accepted (any more)."""

    code = "kubernetes_unauthorized"


class UnknownOutcome(KubernetesError):
    """A write was sent and not answered, or answered with a server's error."""

    code = "kubernetes_outcome_unknown"
    retry = Retry.REPLAN


class UnexpectedAnswer(KubernetesError):
    """The answer is none of an API server: a proxy's page, cut JSON, a redirect."""

    code = "kubernetes_unexpected_answer"
    retry = Retry.BACKOFF


class Misfit(UnexpectedAnswer):
    """One object does not decode: a field of it is none that the API has, or another controller spoilt it."""

    code = "kubernetes_misfit"


class Forbidden(KubernetesError):
    """403: no permission, a policy that refuses, or a quota that is used up."""

    code = "kubernetes_forbidden"
    retry = Retry.BACKOFF


class Denied(Forbidden):
    """An admission policy or a webhook said no, with whatever status: people may change either's mind."""

    code = "kubernetes_denied"


class AdmissionFailed(KubernetesError):
    """500 of a webhook that could not be asked; nothing was written, because it is asked before."""

    code = "kubernetes_admission_failed"
    retry = Retry.BACKOFF


class NotFound(KubernetesError):
    """404: no such object, or no such resource where ``reason`` is empty."""

    code = "kubernetes_not_found"


class Conflict(KubernetesError):
    """409: the object is not the one, or not the version, that the request names."""

    code = "kubernetes_conflict"
    retry = Retry.REPLAN


class AlreadyExists(Conflict):
    """409 of a creation: an object bears the name."""

    code = "kubernetes_already_exists"


class FieldsTaken(Conflict):
    """409 of a server-side apply without force: other managers own fields of it; ``causes`` name both."""

    code = "kubernetes_fields_taken"
    retry = Retry.NEVER


class Claimed(KubernetesError):
    """Not the server's: the object bears the claim of another cluster's farms, and is left alone."""

    code = "kubernetes_claimed"
    retry = Retry.BACKOFF


class Gone(KubernetesError):
    """410: the version or page that the request names is forgotten; a new list is needed."""

    code = "kubernetes_gone"
    retry = Retry.REPLAN


class Invalid(KubernetesError):
    """422, 400 or ``_UNTYPED``: the object or the request is not acceptable, and will not become so."""

    code = "kubernetes_invalid"


class TooLarge(Invalid):
    """413: the object is larger than the server takes."""

    code = "kubernetes_too_large"


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] | None = None


class Status(msgspec.Struct, rename="camel", frozen=True):
    """The body of an answer that is no success, and the object of a watch's ERROR event."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None

    @property
    def causes(self) -> tuple[_Cause, ...]:
        """The errors of single fields."""
        return (self.details and self.details.causes) or ()


_BY_STATUS: dict[int, type[KubernetesError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: Invalid,
    429: TooManyRequests,
}


# An apply of a field that the kind has not, or not so, is answered with 500, before anything is written.
_UNTYPED = ("failed to create typed patch object", "failed to convert new object")
_NOT_ADMITTED = "Internal error occurred: failed calling webhook"
# What is left of the request's time, in a webhook's address: each try would read otherwise.
_PATIENCE = re.compile(r"\?timeout=\w+")
_DENIES = re.compile(
    r"admission webhook \S+ denied the request|ValidatingAdmissionPolicy \S+ with binding \S+ denied request"
)
DENIED = "Denied"
"""The reason of what was ``Denied``, in place of the one that the policy chose."""


def speaks_of_objects(error: Exception) -> bool:
    """Whether the error is about the requested object, and not about the caller or the server: without an
    answer, after 401 and after 429 the next request would fail the same way.
    """
    return getattr(error, "status", 403) not in (0, 401, 429)


def error_of(status: int, body: bytes, what: str, *, write: bool) -> KubernetesError:
    """The error of an answer; ``what`` is the request in words: ``POST /api/v1/…``."""
    try:
        told = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        told = Status(message=" ".join(body.decode(errors="replace").split())[:LONGEST_TEXT])
    kind, reason = _BY_STATUS.get(status), told.reason
    if told.reason == "AlreadyExists":
        kind = AlreadyExists
    elif _DENIES.search(told.message):
        kind, reason = Denied, DENIED
    elif told.message.startswith(_NOT_ADMITTED):
        kind = AdmissionFailed
    elif any(each.reason == "FieldManagerConflict" for each in told.causes):
        kind = FieldsTaken
    elif told.message.startswith(_UNTYPED):
        kind = Invalid
    elif kind is None and status >= 500:
        kind = UnknownOutcome if write else Unavailable
    text = _PATIENCE.sub("", " ".join(told.message.split())) or "no reason given"
    causes = {each.field: each.message for each in told.causes}
    return (kind or UnexpectedAnswer)(
        f"{what}: {status}: {text}", status=status, reason=reason, causes=causes, text=text
    )


def decoded(body: bytes | msgspec.Raw, kind: type[T], what: str) -> T:
    """Decode a successful answer, or a part of it.

    Raises:
        UnexpectedAnswer: it is not an answer of an API server.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswer(f"{what}: the answer is not from a Kubernetes API server: {error}") from error


# What the API server denied this farm for want of rights: verb, resource and namespace.
#
# A quota or a policy refuses with 403 as well; that is no want of rights, and is told of its object alone.

# A watch tries again each half a minute, a worker each minute: what is not denied again is over.
REMEMBERED_SECONDS = 150.0
_RIGHTS = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
    r'(?: in API group "(?P<group>[^"]*)")?(?: in the namespace "(?P<namespace>[^"]+)")?'
)


class Denial(NamedTuple):
    """One right that is missing; ``namespace`` is empty for all."""

    verb: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        where = f"in the namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"may not {self.verb} {self.resource} {where}"


class Denials:
    """The rights that were missing of late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Denial, float] = {}

    def note(self, error: KubernetesError) -> None:
        """Remember a 403, if it is about rights."""
        if (found := _RIGHTS.search(error.message)) is not None:
            resource = ".".join(part for part in (found["resource"], found["group"]) if part)
            self._seen[Denial(found["verb"], resource, found["namespace"] or "")] = self._clock.mono()

    def current(self) -> list[Denial]:
        """The denials of the last moments, sorted; older ones are over."""
        since = self._clock.mono() - REMEMBERED_SECONDS
        self._seen = {denial: at for denial, at in self._seen.items() if at > since}
        return sorted(self._seen)
