"""What holds of every plan, whatever people, other writers and time do: two apps in one model world."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farmd.apps.facts import Plan, Snapshot, owner_of
from farmd.apps.plan import decide, falls_back
from farmd.apps.sweep import steps
from store.apps import Entry
from tests.app_worlds import World, entry
from tests.effort import tries

APPS = ("shop", "next")
NAMES = ("rc/a", "rc/b", "rc/c", "job/d")


@st.composite
def bundles(draw: st.DrawFn) -> tuple[Entry, ...]:
    """Documents of a revision; an object waits only for those before it."""
    chosen = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    return tuple(
        entry(
            name,
            draw(st.integers(0, 2)),
            wave=draw(st.sampled_from([0, 0, 1])),
            after=draw(st.lists(st.sampled_from(chosen[:at]), unique=True)) if at else [],
            on_remove=draw(st.sampled_from(["delete", "delete", "delete", "keep"])),
            apply=draw(st.sampled_from(["always", "always", "once"])),
        )
        for at, name in enumerate(chosen)
    )


class Apps(RuleBasedStateMachine):
    """Two apps that want some of the same objects, and everybody who disturbs them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(slow=True)
        self.refused: dict[str, set[int]] = {name: set() for name in APPS}

    # -- people and the world ------------------------------------------------------------------
    @rule(
        name=st.sampled_from(APPS),
        documents=bundles(),
        prune=st.booleans(),
        mass=st.booleans(),
        adopt=st.sampled_from([[], [], ["*"]]),
        on_failure=st.sampled_from(["stop", "rollback"]),
    )
    def apply(self, name: str, documents: tuple[Entry, ...], **said: Any) -> None:
        record = self.world.apps.get(name)
        if record is None or not record.app.deleting:
            self.world.apply(name, *documents, deadline=30.0, **said)

    @rule(name=st.sampled_from(APPS), how=st.sampled_from(["objects", "keep"]))
    def delete(self, name: str, how: str) -> None:
        if name in self.world.apps:
            self.world.say(name, deleting=how)

    @rule(name=st.sampled_from(APPS), paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        if name in self.world.apps:
            self.world.say(name, paused=paused)

    @rule(frozen=st.booleans())
    def freeze(self, frozen: bool) -> None:
        self.world.frozen = "doubt" if frozen else None

    @rule(
        name=st.sampled_from(NAMES), what=st.sampled_from(["drift", "gone", "fails", "busy", "free", "make"])
    )
    def disturb(self, name: str, what: str) -> None:
        thing = self.world.things.get(name)
        if what == "make" and thing is None:
            self.world.put(name, fields={"value": 1}, fixed=name.startswith("job"))
        elif thing is None:
            return
        elif what == "drift":
            thing.fields["value"] = 7
        elif what == "gone":
            del self.world.things[name]
        elif what == "fails":
            thing.failed = "no image"
        else:
            thing.busy, thing.failed = "somebody changes it" if what == "busy" else "", ""

    @rule(seconds=st.sampled_from([1.0, 31.0, 400.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    # -- a farm --------------------------------------------------------------------------------
    @rule(name=st.sampled_from(APPS), crash=st.integers(0, 3))
    def cycle(self, name: str, crash: int) -> None:
        """One plan, of which a farm that dies carries out only the first acts, or none but the note."""
        if name not in self.world.apps:
            return
        shot = self.world.snapshot(name)
        plan = decide(shot)
        assert plan == decide(shot)  # A9
        self.judge(name, shot, plan)
        if plan.note is not None:
            self.world.apps[name].state = plan.note
            if plan.note.refused:
                self.refused[name].add(plan.note.refused)
        for act in plan.acts[: crash or None]:
            self.world.do(name, act)
        if plan.ends:
            del self.world.apps[name]
            self.refused[name].clear()

    def judge(self, name: str, shot: Snapshot, plan: Plan) -> None:
        own, app = owner_of(name), shot.app
        back = falls_back(app, shot.state)
        wanted = {str(each.ref): each for each in shot.wanted}
        state = plan.note or shot.state
        done = {str(each.ref) for step in steps(shot.wanted)[: state.wave] for each in step}
        now = {str(each.ref) for each in (*steps(shot.wanted), ())[min(state.wave, len(steps(shot.wanted)))]}
        for act in plan.acts:
            ref = str(act.ref)
            live = shot.live.get(ref)
            if live is not None and live.owner != own:  # A1
                assert act.verb == "adopt"
                assert app.adopts(act.ref) or (not live.owner and not live.differs)
                assert not live.owner.startswith("apps/")
            if act.verb in ("remove", "release", "hand"):
                assert live is not None
                assert live.owner == own
                assert ref not in wanted
                swaps = act.verb == "hand" and state.behind  # it waits for an app that waits for it
                assert app.deleting or swaps or state.wave >= len(steps(shot.wanted))  # A3
            if act.verb == "remove":  # A2, A7, A8
                assert app.prune or app.deleting or back
                assert not live.busy  # type: ignore[union-attr]
                assert shot.frozen is None
                assert app.deleting != "keep"
                assert act.entry is None or act.entry.on_remove != "keep"
                assert app.mass or app.deleting or back or wanted
            elif act.verb in ("create", "update", "adopt", "replace", "repair"):
                assert ref in done | now  # A3
                assert act.verb != "replace" or shot.frozen is None
        if plan.note is not None and plan.note.effective != shot.state.effective:  # A6, A7
            effective = plan.note.effective
            assert effective in (app.revision, shot.state.reached)
            if effective != app.revision:
                assert shot.frozen is None
        if plan.acts and not app.deleting:
            assert state.effective not in self.refused[name] - {state.reached}

    @invariant()
    def what_bears_the_mark_is_named_by_a_revision(self) -> None:  # A4
        for name, record in self.world.apps.items():
            if record.app.deleting == "keep":
                continue
            assert self.world.owned(name) <= self.world.former(record).keys()

    @precondition(lambda self: self.world.apps)
    @rule()
    def comes_to_rest(self) -> None:
        """Left alone, every app ends, waits by name, or stands as wanted, and then nothing is planned."""
        self.freeze(False)
        for thing in self.world.things.values():
            thing.busy, thing.failed = "", ""
        for _ in range(80):
            for name in APPS:
                self.cycle(name, 0)
            self.world.tick(5.0)
        for name in APPS:
            if name not in self.world.apps:
                continue
            shot = self.world.snapshot(name)
            plan = decide(shot)
            assert plan.empty  # A5
            if plan.blocked is None and not plan.waiting:
                owned = self.world.owned(name)
                wanted = {str(each.ref) for each in shot.wanted if each.apply == "always"}
                assert wanted <= owned <= {str(each.ref) for each in shot.wanted} | shot.left.keys()


TestApps = Apps.TestCase
TestApps.settings = settings(max_examples=tries(60), stateful_step_count=30, deadline=None)
