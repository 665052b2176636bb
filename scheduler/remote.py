"""A scheduler over HTTP, for fleets whose placement is decided elsewhere (p2 ``pkg/grpc/scheduler``).

The remote scheduler chooses, within the local rules: an answer that names an unknown, cordoned or
full node, or one that a hard constraint forbids, is refused as a whole. Without a valid answer the
policy decides: ask the local scheduler, or block with the reason. After a failure the remote is not
asked for a while, so that a dead one costs one timeout and not one for every worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import aiohttp
import structlog

from scheduler import wire
from scheduler.decide import eligibility
from scheduler.errors import RemoteAnswerInvalid, RemoteUnavailable, SchedulerError
from scheduler.model import Assignment, FleetView, PlacementRequest, Reason
from scheduler.protocol import Allocation, Deallocation, Eligibility, Scheduler
from scheduler.rank import replaced_owner
from scheduler.requirement import compile_request
from scheduler.reservations import release, reserve
from scheduler.verify import violations
from store.errors import CredentialInvalid
from store.ports import Clock
from store.words import share

T = TypeVar("T")

MAX_ANSWER_BYTES = 16 * 1024 * 1024

_log = structlog.get_logger()


class RemoteScheduler:
    """Asks ``POST <url>/v1/{eligible,allocate,deallocate}-nodes``.

    ``timeout`` and ``pause`` (after a failure) are seconds. ``fallback`` None means: block. The
    session belongs to the caller. ``token`` is called for each request; its result is the bearer token.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        clock: Clock,
        *,
        fallback: Scheduler | None = None,
        timeout: float = 5.0,
        pause: float = 30.0,
        token: Callable[[], str] | None = None,
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._clock = clock
        self._fallback = fallback
        self._timeout = timeout
        self._pause = pause
        self._token = token
        self._failure: RemoteUnavailable | RemoteAnswerInvalid | None = None
        self._failed_at = 0.0

    async def eligible_nodes(self, request: PlacementRequest, view: FleetView) -> Eligibility:
        """See ``Scheduler``; nodes that local rules refuse must not be in the answer."""

        async def remote() -> Eligibility:
            body = await self._post("eligible-nodes", wire.question(request, view))
            return _eligibility(wire.answer(wire.EligibleAnswer, body), eligibility(request, view), view)

        return await self._either(remote, lambda local: local.eligible_nodes(request, view))

    async def allocate_nodes(self, request: PlacementRequest, count: int, view: FleetView) -> Allocation:
        """See ``Scheduler``; every place is checked against the local hard rules."""

        async def remote() -> Allocation:
            body = await self._post("allocate-nodes", wire.question(request, view, count=count))
            return _allocation(wire.answer(wire.AllocateAnswer, body), request, count, view)

        return await self._either(remote, lambda local: local.allocate_nodes(request, count, view))

    async def deallocate_nodes(
        self, request: PlacementRequest, assignments: Collection[Assignment], view: FleetView
    ) -> Deallocation:
        """See ``Scheduler``; the remote side must confirm exactly the places that were given back."""
        places = tuple(sorted(set(assignments)))

        async def remote() -> Deallocation:
            body = await self._post("deallocate-nodes", wire.question(request, view, assignments=places))
            confirmed = {
                (place.node, place.instance) for place in wire.answer(wire.DeallocateAnswer, body).assignments
            }
            if confirmed != {(place.node, place.instance) for place in places}:
                raise RemoteAnswerInvalid(
                    "remote scheduler's answer: assignments: expected exactly the places given back"
                )
            return Deallocation(places, release(places, view))

        return await self._either(remote, lambda local: local.deallocate_nodes(request, places, view))

    async def _either(
        self, remote: Callable[[], Awaitable[T]], local: Callable[[Scheduler], Awaitable[T]]
    ) -> T:
        """The remote answer, or the local one if the policy allows it."""
        failure = self._recent_failure()
        if failure is None:
            try:
                found = await remote()
            except (RemoteUnavailable, RemoteAnswerInvalid) as error:
                failure = self._note(error)
            else:
                self._recovered()
                return found
        if self._fallback is None:
            # Anew each time: an error that is raised again keeps the frames of all who raised it.
            raise type(failure)(failure.message, **failure.fields)
        return await local(self._fallback)

    async def _post(self, what: str, body: bytes) -> bytes:
        try:
            headers = {"Content-Type": "application/json"}
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token()}"
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(
                    f"{self._url}/v1/{what}", data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if response.status != 200:
                    raise RemoteUnavailable(
                        f"remote scheduler: status {response.status}, expected 200", status=response.status
                    )
                return await _limited(response)
        except TimeoutError as error:
            raise RemoteUnavailable(f"remote scheduler: no answer within {self._timeout:g} s") from error
        except CredentialInvalid as error:
            raise RemoteUnavailable(f"remote scheduler: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise RemoteUnavailable(f"remote scheduler: {type(error).__name__}: {error}") from error

    def _recent_failure(self) -> SchedulerError | None:
        if self._failure is not None and self._clock.mono() - self._failed_at < self._pause:
            return self._failure
        return None

    def _note(self, error: RemoteUnavailable | RemoteAnswerInvalid) -> SchedulerError:
        if self._failure is None:
            policy = "block" if self._fallback is None else "local"
            _log.warning("scheduler.remote_failed", code=error.code, error=error.message, policy=policy)
        self._failure, self._failed_at = error, self._clock.mono()
        return error

    def _recovered(self) -> None:
        if self._failure is not None:
            _log.info("scheduler.remote_recovered")
            self._failure = None


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise RemoteAnswerInvalid(f"remote scheduler's answer: expected at most {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _eligibility(said: wire.EligibleAnswer, local: Eligibility, view: FleetView) -> Eligibility:
    """The remote verdict, which may refuse more nodes than the local one and never fewer.

    The remote side cannot tell an unknown label from a missing one: on a node whose facts are unknown, pods
    stay (R21).
    """
    for field, names, allowed in (
        ("eligible", said.eligible, local.eligible),
        ("retained", said.retained, local.retained),
    ):
        if len(set(names)) != len(names):
            raise RemoteAnswerInvalid(f"remote scheduler's answer: {field}: a node is named twice")
        if extra := sorted(set(names) - set(allowed)):
            why = "; ".join(reason.text for reason in local.refused.get(extra[0], ())) or "no such node"
            raise RemoteAnswerInvalid(f"remote scheduler's answer: {field}: found {extra[0]!r}: {why}")
    if extra := sorted(set(said.eligible) - set(said.retained)):
        raise RemoteAnswerInvalid(
            f"remote scheduler's answer: retained: expected {extra[0]!r}, it is eligible"
        )
    good = set(said.eligible)
    refused = dict(local.refused)
    for name in local.eligible:
        if name not in good:
            texts = said.refused.get(name) or ["refused by the remote scheduler"]
            refused[name] = tuple(Reason("remote", one) for one in texts)
    unknown = {name for name in local.retained if not view[name].facts_known}
    return Eligibility(tuple(sorted(good)), tuple(sorted({*said.retained, *unknown})), refused)


def _allocation(
    said: wire.AllocateAnswer, request: PlacementRequest, count: int, view: FleetView
) -> Allocation:
    requirement = compile_request(request)
    places = tuple(
        Assignment(
            place.node,
            place.instance,
            replaced_owner(requirement, view[place.node]) if place.node in view else "",
        )
        for place in said.assignments
    )
    if wrong := violations(request, places, count, view):
        raise RemoteAnswerInvalid(f"remote scheduler's answer: assignments: {wrong[0]}", violations=wrong)
    missing = count - len(places)
    why = (
        f"{share(missing, count, 'pod')} found no place: {said.why or 'the remote scheduler gave no reason'}"
    )
    return Allocation(places, missing, why if missing else "", {}, reserve(places, request, view))
