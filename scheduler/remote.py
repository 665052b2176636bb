"""A scheduler over HTTP: its messages, its answers, and the local rules that check each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import aiohttp
import msgspec
import structlog

from scheduler.constraints import Requirement, compile_request
from scheduler.decide import eligibility
from scheduler.errors import RemoteAnswerInvalid, RemoteUnavailable, SchedulerError
from scheduler.feasibility import room_reasons, standing_reasons
from scheduler.fleet import populated, used_amounts
from scheduler.ledger import release, reserve
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest, PodView, Reason
from scheduler.protocol import Allocation, Deallocation, Eligibility, Scheduler
from scheduler.rank import replaced_owner
from scheduler.rules import domain_reasons, domain_rules
from store import features
from store.errors import CredentialInvalid
from store.manifests import PORT_RESOURCE, Placement, asked
from store.nodes import Taint
from store.ports import Clock
from store.words import count_of, share

# Checks an allocation against the rules that no scheduler may break, one place after the other.
#
# The answers of a remote scheduler are checked with it. It shares the reasons with ``decide`` and no
# code with ``rank``, so tests also use it to check the local scheduler.


def violations(
    request: PlacementRequest, assignments: Sequence[Assignment], count: int, view: FleetView
) -> list[str]:
    """The violations of an allocation, one line each; empty if it may be used.

    Raises:
        PlacementInvalid: the manifest's placement block cannot work.
    """
    requirement = compile_request(request)
    rules = domain_rules(requirement, view, count)
    now: dict[str, NodeView] = dict(view)
    found = []
    if len(assignments) > count:
        found.append(f"{count_of(len(assignments), 'place')} for {count_of(count, 'pod')}")
    for place in assignments:
        node = now.get(place.node)
        if node is None:
            found.append(f"{place.node}: no such node")
            continue
        if request.among is not None and place.node not in request.among:
            found.append(f"{place.node}: not among the request's nodes")
        found += _wrong_instance(requirement, place, node)
        reasons = standing_reasons(requirement, node) + room_reasons(requirement, node)
        reasons += domain_reasons(rules, node)
        found += [f"{place.node}: {reason.text}" for reason in reasons]
        now[place.node] = _after(requirement, place, node)
        for rule in rules:
            rule.add(rule.domain(node))
    return found


def _wrong_instance(requirement: Requirement, place: Assignment, node: NodeView) -> list[str]:
    """Refuse an instance name that is wrong: the key of the intent is what makes an instance unique."""
    pod_id = requirement.pod_id
    if requirement.exclusive:
        if place.instance != pod_id:
            return [f"{place.node}: instance {place.instance!r}, expected {pod_id!r}"]
        holder = node.pods.get(pod_id)
        owner = holder.owner if holder is not None and holder.owner != requirement.request.owner else ""
        if owner in requirement.request.replaces and place.replaces != owner:
            return [f"{place.node}: replaces {place.replaces!r}, expected {owner!r}"]
        return []
    head, _, number = place.instance.rpartition("~")
    if head != pod_id or not (number.isascii() and number.isdecimal()) or str(int(number)) != number:
        return [f"{place.node}: instance {place.instance!r}, expected '{pod_id}~<number>'"]
    if place.instance in node.pods:
        return [f"{place.node}: instance {place.instance!r} is taken"]
    return []


def _after(requirement: Requirement, place: Assignment, node: NodeView) -> NodeView:
    """The node with the place taken."""
    request = requirement.request
    pods = {**node.pods, place.instance: PodView(request.owner, request.labels)}
    instances = {**node.reserved.instances, place.instance: asked(request.manifest)}
    reserved = msgspec.structs.replace(node.reserved, instances=instances)
    return msgspec.structs.replace(populated(node, pods), reserved=reserved, used=used_amounts(reserved))


# The messages between farmd and a remote scheduler: JSON, version 1.
#
# A question carries only what placement needs: no command or environment of a manifest is sent, and of its
# ports only the fixed ones, as resources.
# Answers are decoded strictly: an unknown field means that the remote side uses another version of the
# format, and a place must never be guessed.

T = TypeVar("T")


class PodQuestion(msgspec.Struct, frozen=True):
    """The pod to place: its manifest's id, labels, resources and placement block.

    ``features`` are those that its node must have.
    """

    id: str
    owner: str
    labels: dict[str, str]
    resources: dict[str, float]
    placement: Placement
    system: bool
    features: list[str]


class WirePod(msgspec.Struct, frozen=True):
    """A pod on a node; one that is ``done`` only keeps its name."""

    owner: str
    labels: dict[str, str]
    done: bool = False


class WireNode(msgspec.Struct, frozen=True):
    """A node; ``used`` sums the reservations."""

    name: str
    labels: dict[str, str]
    taints: list[Taint]
    cordoned: bool
    drain: str
    presence: str
    capacity: dict[str, float]
    used: dict[str, float]
    pods: dict[str, WirePod]
    features: list[str]


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node and the instance on it."""

    node: str
    instance: str


class Question(msgspec.Struct, frozen=True):
    """Body of every request. ``count`` is used by allocate, ``assignments`` by deallocate."""

    version: int
    pod: PodQuestion
    node_selector: str
    replicas_per_node: int
    numbered: bool
    replaces: list[str]
    leaving: list[Place]
    count: int
    assignments: list[Place]
    nodes: list[WireNode]


class EligibleAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``eligible`` nodes may take a pod, ``retained`` nodes may keep theirs; ``refused``: reasons by node."""

    eligible: list[str]
    retained: list[str]
    refused: dict[str, list[str]] = {}


class AllocateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Places in order of preference; ``why`` tells why there are fewer than asked for."""

    assignments: list[Place]
    why: str = ""


class DeallocateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places that were given back, which must be all places of the question."""

    assignments: list[Place]


def question(
    request: PlacementRequest, view: FleetView, *, count: int = 0, assignments: Collection[Assignment] = ()
) -> bytes:
    """Encode a question about the nodes of a view, or those of ``request.among``."""
    manifest = request.manifest
    ports = {name: 1.0 for name in asked(manifest) if name.startswith(PORT_RESOURCE)}
    names = view.keys() if request.among is None else request.among & view.keys()
    body = Question(
        version=1,
        pod=PodQuestion(
            manifest.id,
            request.owner,
            dict(request.labels),
            asked(manifest),
            manifest.placement,
            manifest.system,
            list(features.needed(manifest)),
        ),
        node_selector=str(request.selector),
        replicas_per_node=request.replicas_per_node,
        numbered=request.numbered,
        replaces=sorted(request.replaces),
        leaving=[Place(node, instance) for node, instance in sorted(request.leaving)],
        count=count,
        assignments=[Place(place.node, place.instance) for place in sorted(assignments)],
        nodes=[_node(view[name], ports) for name in sorted(names)],
    )
    return msgspec.json.encode(body)


def answer(kind: type[T], body: bytes) -> T:
    """Decode an answer strictly.

    Raises:
        RemoteAnswerInvalid: wrong shape; names the field, what was found and what was expected.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteAnswerInvalid(f"remote scheduler's answer: {error}") from error


def _node(node: NodeView, ports: Mapping[str, float]) -> WireNode:
    return WireNode(
        name=node.name,
        labels=dict(node.labels),
        taints=list(node.taints),
        cordoned=node.cordoned,
        drain=node.drain,
        presence=node.presence,
        capacity={**ports, **node.capacity},
        used=dict(node.used),
        pods={
            instance: WirePod(pod.owner, dict(pod.labels), pod.done) for instance, pod in node.pods.items()
        },
        features=sorted(node.features),
    )


# A scheduler over HTTP, for fleets whose placement is decided elsewhere (p2 ``pkg/grpc/scheduler``).
#
# The remote scheduler chooses, within the local rules: an answer that names an unknown, cordoned or
# full node, or one that a hard constraint forbids, is refused as a whole. Without a valid answer the
# policy decides: ask the local scheduler, or block with the reason. After a failure the remote is not
# asked for a while, so that a dead one costs one timeout and not one for every worker.

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
            body = await self._post("eligible-nodes", question(request, view))
            return _eligibility(answer(EligibleAnswer, body), eligibility(request, view), view)

        return await self._either(remote, lambda local: local.eligible_nodes(request, view))

    async def allocate_nodes(self, request: PlacementRequest, count: int, view: FleetView) -> Allocation:
        """See ``Scheduler``; every place is checked against the local hard rules."""

        async def remote() -> Allocation:
            body = await self._post("allocate-nodes", question(request, view, count=count))
            return _allocation(answer(AllocateAnswer, body), request, count, view)

        return await self._either(remote, lambda local: local.allocate_nodes(request, count, view))

    async def deallocate_nodes(
        self, request: PlacementRequest, assignments: Collection[Assignment], view: FleetView
    ) -> Deallocation:
        """See ``Scheduler``; the remote side must confirm exactly the places that were given back."""
        places = tuple(sorted(set(assignments)))

        async def remote() -> Deallocation:
            body = await self._post("deallocate-nodes", question(request, view, assignments=places))
            confirmed = {(place.node, place.instance) for place in answer(DeallocateAnswer, body).assignments}
            if confirmed != {(place.node, place.instance) for place in places}:
                raise RemoteAnswerInvalid(
                    "remote scheduler's answer: assignments: expected exactly the places that were returned"
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


def _eligibility(said: EligibleAnswer, local: Eligibility, view: FleetView) -> Eligibility:
    """The remote verdict, which may refuse more nodes than the local one and never fewer.

    The remote side cannot tell an unknown label from a missing one: on a node whose facts are unknown, pods
    stay (R21).
    """
    for field, names, allowed in (
        ("eligible", said.eligible, local.eligible),
        ("retained", said.retained, local.retained),
    ):
        if len(set(names)) != len(names):
            raise RemoteAnswerInvalid(f"remote scheduler's answer: {field}: a node is listed twice")
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


def _allocation(said: AllocateAnswer, request: PlacementRequest, count: int, view: FleetView) -> Allocation:
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
