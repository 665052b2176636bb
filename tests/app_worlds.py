"""Apps and their objects without any store: a model on which plans are carried out, for tests of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from farmd.apps.facts import Act, Live, Plan, Ref, Snapshot, both, heirs, owner_of, takes
from farmd.apps.plan import carried, decide, revisions, target
from store.apps import App, DispatchState, Entry, TypedReference


@dataclass
class Thing:
    """An object as it stands; one that is ``going`` is gone at the next ``tick``."""

    ref: TypedReference
    owner: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    ready: bool = True
    failed: str = ""
    busy: str = ""
    fixed: bool = False
    going: bool = False


def ref(text: str) -> TypedReference:
    kind, name = text.split("/")
    return TypedReference(kind=kind, name=name)


def entry(text: str, /, value: int = 0, **said: Any) -> Entry:
    """An object of a file: ``rc/web``, with a field that may change."""
    return Entry(ref=ref(text), document={"value": value}, **said)


@dataclass
class Record:
    """One app: what people ask, how far it is, and its revisions."""

    app: App
    state: DispatchState = field(default_factory=DispatchState)
    trackers: dict[int, tuple[Entry, ...]] = field(default_factory=dict)


@dataclass
class World:
    """All objects and apps. ``slow``: what is made or changed is not ready at once."""

    things: dict[Ref, Thing] = field(default_factory=dict)
    apps: dict[str, Record] = field(default_factory=dict)
    now: float = 1000.0
    frozen: str | None = None
    slow: bool = False
    acts: list[tuple[str, Act]] = field(default_factory=list)

    # -- people --------------------------------------------------------------------------------
    def apply(self, name: str, *documents: Entry, **settings: Any) -> int:
        """Record a revision and want it."""
        record = self.apps.get(name)
        former = self.former(record) if record is not None else {}
        number = record.app.revision + 1 if record is not None else 1
        app = replace(record.app if record else App(revision=1), revision=number, mass=False, adopt=[])
        app = replace(app, **settings)
        if record is None:
            record = self.apps[name] = Record(app)
        record.trackers[number] = carried(documents, former, prune=app.prune)
        record.app = app
        return number

    def say(self, name: str, **settings: Any) -> None:
        self.apps[name].app = replace(self.apps[name].app, **settings)

    def put(self, text: str, owner: str = "", **said: Any) -> Thing:
        self.things[text] = Thing(ref(text), owner, **said)
        return self.things[text]

    # -- a farm --------------------------------------------------------------------------------
    def former(self, record: Record) -> dict[Ref, Entry]:
        numbers = sorted(revisions(record.app, record.state))
        return {str(each.ref): each for number in numbers for each in record.trackers[number]}

    def snapshot(self, name: str) -> Snapshot:
        record = self.apps[name]
        entries = record.trackers.get(target(record.app, record.state), ())
        wanted = {str(each.ref): each for each in entries if not each.left}
        former = self.former(record)
        known = {*wanted, *former}
        return Snapshot(
            name=name,
            app=record.app,
            state=record.state,
            wanted=tuple(wanted.values()),
            left={str(each.ref): each for each in entries if each.left},
            former=former,
            live={
                ref: self.live(wanted.get(ref), thing) for ref, thing in self.things.items() if ref in known
            },
            others=both(
                heirs({other: each.state for other, each in self.apps.items()}, name), self.takers(name)
            ),
            behind={other: each.state.behind for other, each in self.apps.items() if other != name},
            frozen=self.frozen,
            now=self.now,
        )

    def takers(self, name: str) -> Mapping[str, Sequence[str]]:
        """What other apps' wanted revisions take over of what an app has, as farms and people read it."""
        own = [ref for ref, thing in self.things.items() if thing.owner == owner_of(name)]
        return {
            ref: [
                other
                for other, each in sorted(self.apps.items())
                if other != name and takes(each.app, each.state, ref) and ref in self.named(each)
            ]
            for ref in own
        }

    @staticmethod
    def named(record: Record) -> set[str]:
        return {str(each.ref) for each in record.trackers.get(record.app.revision, ()) if not each.left}

    def live(self, wanted: Entry | None, thing: Thing) -> Live:
        document: Mapping[str, Any] = (wanted.document or {}) if wanted is not None else {}
        differs = tuple(sorted(key for key, value in document.items() if thing.fields.get(key) != value))
        verdict = "failed" if thing.failed else "ready" if thing.ready else "progressing"
        busy = "is being deleted" if thing.going else thing.busy
        return Live(
            ref=thing.ref,
            owner=thing.owner,
            differs=differs,
            fixed=thing.fixed and bool(differs),
            verdict=verdict,  # type: ignore[arg-type]
            why=thing.failed or ("" if thing.ready else "not ready"),
            busy=busy,
        )

    def cycle(self, name: str) -> Plan:
        """One plan, carried out whole."""
        plan = decide(self.snapshot(name))
        if plan.note is not None:
            self.apps[name].state = plan.note
        for act in plan.acts:
            self.do(name, act)
        if plan.ends:
            del self.apps[name]
        return plan

    def do(self, name: str, act: Act) -> None:
        self.acts.append((name, act))
        text = str(act.ref)
        match act.verb:
            case "remove" | "replace":
                self.things[text].going = True
            case "release":
                self.things[text].owner = ""
            case "hand":
                self.things[text].owner = owner_of(act.to)
            case _:
                assert act.entry is not None
                thing = self.things.setdefault(text, Thing(act.ref))
                thing.owner, thing.ready = owner_of(name), not self.slow
                thing.fields |= act.entry.document or {}

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes: what was made is ready, what was removed is gone."""
        self.now += seconds
        self.things = {text: thing for text, thing in self.things.items() if not thing.going}
        for thing in self.things.values():
            thing.ready = True

    def run(self, *names: str, most: int = 60) -> Plan:
        """Cycles of all apps until nothing is left to do; the last plan of the first one."""
        plan = Plan()
        for _ in range(most):
            plans = [self.cycle(name) for name in (names or tuple(self.apps)) if name in self.apps]
            plan = plans[0] if plans else Plan(ends=True)
            if all(each.empty for each in plans) and not any(thing.going for thing in self.things.values()):
                return plan
            self.tick()
        raise AssertionError(f"no end after {most} cycles: {plan}")

    def owned(self, name: str) -> set[Ref]:
        return {text for text, thing in self.things.items() if thing.owner == owner_of(name)}

    def verbs(self, name: str = "shop") -> list[tuple[str, Ref]]:
        return [(act.verb, str(act.ref)) for app, act in self.acts if app == name]


def world(documents: Sequence[Entry] = (), **settings: Any) -> World:
    """A world with the app ``shop``, which has reached a revision of these documents."""
    found = World()
    if documents:
        found.apply("shop", *documents, **settings)
        found.run()
        found.acts.clear()
    return found
