"""Jobs: a set of slots (type, index) that each end well once, and how far a job has come.

The record holds what people ask. What must outlive every pod stands in ``runs/<id>``, which the job's worker
alone writes, in the transaction that rests on it. It is made with the job, so the job of one that is missing
waits for a person. Jobs of earlier versions have none before their first start. Indexes are
ranges (``store.indexes``), so that an array of 100,000 slots stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from store.errors import RecordInvalid, refuse
from store.keys import valid_name
from store.mistakes import shown
from store.status import ItemStatus
from store.times import Time

KIND = "jobs"
JOB_ID_LABEL = "job_id"

MAX_NAME, MAX_TYPE_NAME, MAX_TYPES, MAX_RULES = 40, 16, 16, 8
MAX_REPLICAS, MAX_ARRAY, MAX_PEERS = 5_000, 100_000, 5_000
MAX_SECONDS = 31 * 86_400.0
MASTERS = frozenset({"chief", "master", "launcher"})
SERVERS = frozenset({"ps"})

RestartPolicy = Literal["never", "on-failure", "exit-code"]
Action = Literal["fail-job", "restart", "restart-job", "ignore"]
Outcome = Literal["", "succeeded", "failed"]


class Type(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One type of slots: ``replicas`` members that run ``manifest``.

    ``parallelism``: how many of them are there at a time, which makes the type an array; 0: all. ``restart``
    says what follows the end of a member: nothing, a restart in its place after a failure, or a new attempt
    after an exit code of 128 and more, and failure for good after a lower one.
    """

    name: str
    manifest: str
    replicas: int = 1
    parallelism: int = 0
    pod_id: str = ""
    restart: RestartPolicy = "on-failure"
    node_selector: str = ""
    pod_labels: dict[str, str] = {}


class Success(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A job succeeds when all, or any one, of the slots of these types ended well.

    No types: the master (chief, master or launcher) if there is one, or else all but parameter servers (ps).
    """

    operator: Literal["all", "any"] = "all"
    types: list[str] = []


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What follows a failure: the first rule that fits decides.

    It fits a member of these types (none: all) with one of these exit codes or ``reasons`` (``lost``,
    ``oom``); without codes and reasons it fits every failure.
    """

    action: Action
    exit_codes: list[int] = []
    reasons: list[str] = []
    types: list[str] = []


class Job(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Run the slots of all ``types`` until they ended well, or until the job failed.

    ``gang``: no member runs before all can. ``peers``: members know each other's addresses, so a lost one
    restarts the whole job. ``backoff_limit``: how many retries there are in all. ``active_deadline``: seconds
    from its start after which it fails; None: none. ``ttl``: seconds after its end when it is deleted; None:
    never. ``clean``: which members go at its end. ``restart_scope``: whether a failure restarts its slot or
    the job. ``on_lost``: whether a member on a lost node is replaced (R21). ``gang_timeout``: seconds that a
    gang may hold its places before it gives all of them back. ``needs`` are features of farms (R11).
    ``suspend`` takes its members away until it is resumed. ``recorded``: its run was made with it, so a run
    that is missing or empty was lost, and must not be taken for one that has not begun.
    """

    id: str
    name: str
    types: list[Type] = []
    gang: bool = False
    peers: bool = False
    success: Success = Success()
    rules: list[Rule] = []
    suspend: bool = False
    backoff_limit: int = 6
    active_deadline: float | None = None
    ttl: float | None = 86_400.0
    clean: Literal["none", "running", "all"] = "running"
    restart_scope: Literal["slot", "job"] = "slot"
    on_lost: Literal["replace", "wait"] = "replace"
    gang_timeout: float = 60.0
    labels: dict[str, str] = {}
    needs: list[str] = []
    deleting: bool = False
    created: Time = 0.0
    part_of: str = ""
    open: list[str] = []
    recorded: bool = False

    # What other owners of pods have, and a job has not.
    count: ClassVar[None] = None
    disabled: ClassVar[bool] = False
    taken: ClassVar[bool] = False
    restart: ClassVar[int] = 0
    stays: ClassVar[str] = ""
    min_healthy_time: ClassVar[float] = 0.0

    def type(self, name: str) -> Type | None:
        """The type of that name; None: there is none."""
        return next((each for each in self.types if each.name == name), None)

    @property
    def size(self) -> int:
        """How many slots it has."""
        return sum(each.replicas for each in self.types)

    @property
    def manifests(self) -> tuple[str, ...]:
        """Digests of the manifests of its types."""
        return tuple(dict.fromkeys(each.manifest for each in self.types))


class SlotRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slot that was tried before: its present attempt, from 0, when the last one failed, and why, if that
    was not the program's own doing.
    """

    attempt: int
    failed_at: Time = 0.0
    cause: str = ""


class Run(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a job is.

    ``attempt`` counts the restarts of the job as a whole, ``restarts`` the retries against its limit.
    ``slots``, by type and index, are those whose attempt is above the job's; ``done`` are ranges of indexes
    that ended well, ``given_up`` those that are tried no more. ``outcome`` is for ever; ``reason`` and
    ``message`` say why it failed. ``started`` is its start or last resumption, ``finished`` its end, and
    ``failed_at`` the failure after which the job was restarted as a whole. ``gave_back`` is how often in a
    row a gang gave its places back, and ``not_before`` when it tries again. ``source`` is where a job in
    Kubernetes is: its cluster's name, plural, namespace and name, with slashes between. ``job`` is the id of
    the job that it was made with, so that it is never empty; earlier versions did not write it. ``stopped``:
    people stopped the job once, so processes of members that were removed may be left.
    """

    attempt: int = 0
    restarts: int = 0
    slots: dict[str, dict[str, SlotRun]] = {}
    done: dict[str, str] = {}
    given_up: dict[str, str] = {}
    started: Time = 0.0
    finished: Time = 0.0
    outcome: Outcome = ""
    reason: str = ""
    message: str = ""
    failed_at: Time = 0.0
    gave_back: int = 0
    not_before: Time = 0.0
    source: str = ""
    job: str = ""
    stopped: bool = False


def known_run(job: Job, run: Run | None, key: str) -> Run:
    """The run of a job, from the record at ``key``, if there is one.

    Raises:
        RecordInvalid: it was lost, so nobody knows what the job has done.
    """
    if job.recorded and run in (None, Run()):
        found = "no record" if run is None else "an empty one"
        raise RecordInvalid(f"{key}: found {found}, expected how far job {job.name!r} is", key=key)
    return Run() if run is None else run


class JobStatus(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """What people are told of a job: of ``desired`` slots so many are ``done`` or ``failed`` for good, have a
    member (``placed``), and one that runs (``healthy``); ``restarts`` are its retries.
    """

    desired: int = 0
    done: int = 0
    failed: int = 0
    placed: int = 0
    healthy: int = 0
    restarts: int = 0

    @property
    def progress(self) -> str:
        """How many slots ended well, and how many members stand."""
        return f"{self.done} of {self.desired} done, {self.placed} active"


def check(job: Job, source: str) -> None:
    """Check all limits of a job, also of one that another program wrote.

    Raises:
        InputInvalid: one line that names the field, what was found and what is expected.
    """
    valid_name(job.name, f"{source}: name")
    if len(job.name) > MAX_NAME:
        refuse(f"{source}: name", f"{len(job.name)} characters", f"at most {MAX_NAME}", field="name")
    _between(len(job.types), 1, MAX_TYPES, f"{source}: types", "types")
    known: set[str] = set()
    for number, each in enumerate(job.types):
        _check_type(job, each, f"{source}: types[{number}]", f"types[{number}]")
        if each.name in known:
            refuse(f"{source}: types[{number}].name", f"{each.name!r} again", "each name once")
        known.add(each.name)
    _between(job.backoff_limit, 0, MAX_ARRAY, f"{source}: backoff_limit")
    for name, lowest in (("active_deadline", 1.0), ("ttl", 0.0), ("gang_timeout", 1.0)):
        if (value := getattr(job, name)) is not None:
            _between(value, lowest, MAX_SECONDS, f"{source}: {name}", "seconds")
    if job.peers and job.size > MAX_PEERS:
        refuse(f"{source}: peers", f"{job.size} members", f"at most {MAX_PEERS}", field="peers")
    if job.peers and not job.gang:
        refuse(f"{source}: peers", "true without a gang", "gang: true beside it", field="peers")
    _check_policies(job, source)


def check_meant(job: Job, source: str) -> None:
    """Refuse what nobody can mean. Earlier versions took it, so farms go on with such records.

    Raises:
        InputInvalid: as ``check``.
    """
    if job.gang and not job.size:
        refuse(f"{source}: gang", "true without a slot", "replicas of a type above 0", field="gang")
    judged = [each for each in job.types if each.name in job.success.types]
    if judged and job.size and not any(each.replicas for each in judged):
        names = ", ".join(job.success.types)
        refuse(f"{source}: success.types", f"{names} with 0 replicas", "a type that has slots")


def _check_type(job: Job, each: Type, source: str, field: str) -> None:
    valid_name(each.name, f"{source}.name")
    if len(each.name) > MAX_TYPE_NAME:
        text = f"at most {MAX_TYPE_NAME} beside job {job.name!r}"
        refuse(f"{source}.name", f"{len(each.name)} characters", text, field=f"{field}.name")
    _between(each.replicas, 0, MAX_ARRAY if each.parallelism else MAX_REPLICAS, f"{source}.replicas")
    _between(each.parallelism, 0, MAX_REPLICAS, f"{source}.parallelism")
    if job.gang and each.parallelism:
        refuse(f"{source}.parallelism", shown(each.parallelism), "0: all members of a gang run together")


def _check_policies(job: Job, source: str) -> None:
    known = [each.name for each in job.types]
    _known(job.success.types, known, f"{source}: success.types")
    _between(len(job.rules), 0, MAX_RULES, f"{source}: rules", "rules")
    for number, rule in enumerate(job.rules):
        _known(rule.types, known, f"{source}: rules[{number}].types")
        for code in rule.exit_codes:
            where = f"{source}: rules[{number}].exit_codes"
            _between(code, -64, 255, where, "as an exit code, or minus a signal")
            if code == 0:
                refuse(where, "0", "codes of failures", field=f"rules[{number}].exit_codes")
        for reason in rule.reasons:
            if reason not in ("lost", "oom"):
                refuse(f"{source}: rules[{number}].reasons", repr(reason), "'lost' or 'oom'")


def _known(names: Sequence[str], known: Sequence[str], field: str) -> None:
    for name in names:
        if name not in known:
            refuse(field, repr(name), f"one of the job's types: {', '.join(known)}", field=field)


def _between(value: float, lowest: float, highest: float, where: str, what: str = "") -> None:
    if not lowest <= value <= highest:
        text = f"{shown(lowest)} to {shown(highest)}{f' {what}' if what else ''}"
        refuse(where, shown(value), text, field=where.partition(": ")[2])
