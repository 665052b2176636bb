"""The facts of an app: its snapshot, its plan, the names of its revisions. Values, no decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from farmd.work.model import Blocked
from store.apps import ALL, KIND, App, DispatchState, Entry, ResourceTracker, TypedReference

if TYPE_CHECKING:
    from farmd.commands.edits import State

# The names of trackers as KubeVela builds and reads them, for eyes and for tools that know them.
#
# No decision reads a name: ``a-b`` in ``c`` and ``a`` in ``b-c`` have the same one.


def construct_resource_tracker_name(revision: str, namespace: str) -> str:
    """The name of the tracker of a revision such as ``shop-v3``."""
    return f"{revision}-{namespace}"


def extract_app_revision_name(tracker: str, namespace: str) -> str:
    """The revision's name in a tracker's name; the whole name where it does not end in the namespace."""
    return tracker.removesuffix(f"-{namespace}")


def extract_app_name(tracker: str, namespace: str) -> str:
    """The app's name in a tracker's name; empty where that has no revision."""
    return extract_app_revision_name(tracker, namespace).rpartition("-")[0]


def revision_name(app: str, revision: int) -> str:
    """The name of a revision: ``shop-v3``."""
    return f"{app}-v{revision}"


# The snapshot of an app, its plan, and what is known of each object: values, no decisions.
#
# What an app wants is in its trackers; what is stands in the objects themselves, with the mark of their
# owner.

__all__ = [
    "COLLECTING",
    "Act",
    "ApplicationRevision",
    "Live",
    "Plan",
    "Ref",
    "Rehearsal",
    "ResourceTracker",
    "Snapshot",
    "TypedReference",
    "Verb",
    "app_of",
    "heirs",
    "owner_of",
]

# An object's identity, ``str`` of its reference.
Ref = str
Verb = Literal["create", "update", "adopt", "repair", "replace", "release", "hand", "remove"]
# The phases in which all that is wanted stands, or nothing is wanted any more.
COLLECTING = frozenset({"sweeping", "deleting"})


def owner_of(app: str) -> str:
    """The mark that an app's objects bear."""
    return f"{KIND}/{app}"


def app_of(owner: str) -> str:
    """The app whose mark that is; empty: it is no app's."""
    return owner.removeprefix(f"{KIND}/") if owner.startswith(f"{KIND}/") else ""


def heirs(states: Mapping[str, DispatchState], app: str) -> Mapping[Ref, Sequence[str]]:
    """What other apps wait for by their states, with those apps by name; ``*``: for more of this app's."""
    found: dict[Ref, list[str]] = {}
    for other, state in sorted(states.items()):
        for ref in state.waits if other != app else ():
            if ref != ALL or app in state.behind:
                found.setdefault(ref, []).append(other)
    return found


def takes(app: App, state: DispatchState, ref: Ref) -> bool:
    """Whether an app may take an object of another app's for its wanted revision, if that names it."""
    over = app.deleting or app.revision == state.refused
    return not over and (ALL in app.adopt or ref in app.adopt)


def both(*found: Mapping[Ref, Sequence[str]]) -> Mapping[Ref, Sequence[str]]:
    """The apps that want each object, without repetitions, in the order of these mappings."""
    refs = {ref for each in found for ref, apps in each.items() if apps}
    return {ref: list(dict.fromkeys(app for each in found for app in each.get(ref, ()))) for ref in refs}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRevision:
    """One revision of an app, as KubeVela calls it."""

    app: str
    number: int
    namespace: str = "default"

    @property
    def name(self) -> str:
        """The revision's name: ``shop-v3``."""
        return revision_name(self.app, self.number)

    @property
    def tracker(self) -> str:
        """The name of its tracker."""
        return construct_resource_tracker_name(self.name, self.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The live state of an object.

    ``owner``: ``apps/<name>``, empty, or what else has it, as text. ``differs`` are the fields that its file
    states otherwise; without a file none; ``values`` are these in Kubernetes with what they were and will be,
    for people. ``fixed``: it takes no such change, and is made anew for it.
    ``busy``: what changes it now, so that it must wait; ``broken``: until a person mends it. ``seq`` is the
    mark's number and ``created`` when the object was made, in Kubernetes alone; ``version`` is the one that
    was read. ``settles``: seconds until time alone changes the verdict, or until to look again, because
    nothing tells of a change.
    """

    ref: TypedReference
    owner: str = ""
    differs: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    fixed: bool = False
    verdict: State = "unknown"
    why: str = ""
    busy: str = ""
    broken: bool = False
    seq: int = 0
    created: float = 0.0
    version: str | int = 0
    settles: float | None = None

    @property
    def denied(self) -> bool:
        """Whether the API server takes no such change: what others change there is not compared."""
        return bool(self.busy and self.differs) and not self.ref.own


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a plan rests on.

    ``wanted`` are the entries of the target (``plan.target``) without those that are only ``left``, which are
    ``left``. ``former`` are the entries of all revisions that may have left something, each as the newest one
    has it. ``live`` has no object that does not exist. ``others``: objects that other apps wait for, or will
    once a farm looks at their wanted revisions, with those apps by name; ``*``: apps that wait for more of
    its objects than are known. ``behind``: of each app that waits, the apps whose objects it waits for.
    ``frozen``: the evidence that freezes removals, unless people changed the app since. ``tried``: why
    changes could not be made that were tried last.
    """

    name: str
    app: App
    state: DispatchState
    wanted: tuple[Entry, ...] = ()
    left: Mapping[Ref, Entry] = field(default_factory=dict)
    former: Mapping[Ref, Entry] = field(default_factory=dict)
    live: Mapping[Ref, Live] = field(default_factory=dict)
    others: Mapping[Ref, Sequence[str]] = field(default_factory=dict)
    behind: Mapping[str, Collection[str]] = field(default_factory=dict)
    frozen: str | None = None
    tried: Mapping[Ref, str] = field(default_factory=dict)
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Act:
    """One change of one object. ``differs`` are the fields that it changes, ``to`` the app that an object is
    handed to. ``force``: an adoption also takes fields that others manage. ``inherits``: it takes what
    kubectl applied, so that what its file does not state goes.
    """

    verb: Verb
    ref: TypedReference
    entry: Entry | None = None
    why: str = ""
    to: str = ""
    differs: tuple[str, ...] = ()
    force: bool = False
    inherits: bool = False


class Rehearsal(NamedTuple):
    """A server's answer to a change before it is recorded: its refusal, or its warnings."""

    refused: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now.

    ``acts`` may be done in any order. ``note`` is the app's next state, written before them; ``action`` is
    its name in the audit. ``refused`` are the objects that it may not take, ``waiting`` those that are not
    ready, each with the reason. ``ends``: nothing of a deleted app is left. ``mark``: an object's, above all
    that are recorded. ``after``: seconds until time alone changes the plan.
    """

    acts: tuple[Act, ...] = ()
    note: DispatchState | None = None
    action: str = ""
    why: str = ""
    refused: Mapping[Ref, str] = field(default_factory=dict)
    waiting: Mapping[Ref, str] = field(default_factory=dict)
    phase: str = ""
    ends: bool = False
    mark: int = 0
    blocked: Blocked | None = None
    after: float | None = None

    @property
    def collects(self) -> bool:
        """Whether its changes take away all that is not wanted any more; a swap only hands over before its
        end.
        """
        return bool(self.acts) and self.phase in COLLECTING

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not (self.acts or self.note is not None or self.ends)
