"""The last output of removed pods: what is kept of it, how much, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from farmd.agent import logs as module
from farmd.agent.errors import StateUnsaved
from farmd.agent.log_files import Log
from farmd.agent.logs import Choice, Gone, LogLine, chosen
from farmd.agent.state import StateDirectory
from store.errors import InputInvalid
from tests.still_clock import StillClock

HOUR = 3600.0


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    made = StateDirectory(tmp_path)
    made.instances.mkdir()
    return made


@pytest.fixture
def gone(state: StateDirectory, clock: StillClock) -> Gone:
    return Gone(state, clock)


def wrote(state: StateDirectory, instance: str, *output: str, max_bytes: int = 2**21) -> None:
    """A pod that wrote this, one start for each text."""
    state.create(instance)
    for number, text in enumerate(output):
        log = Log(str(state.logs(instance)), max_bytes, 3, f"s{number}")
        log.begin()
        log.write(text.encode())


def kept(gone: Gone, instance: str, *, previous: bool = False) -> list[LogLine] | None:
    found = gone.logs(instance)
    return None if found is None else chosen(found[0], Choice(10_000, previous=previous))


def test_the_output_stays_with_its_times_and_starts(state: StateDirectory, gone: Gone) -> None:
    wrote(state, "web~0", "one\ntwo\n", "three\n")
    before = chosen(state.logs("web~0"), Choice(99))
    gone.keep("web~0")
    state.remove("web~0")
    assert kept(gone, "web~0") == [line._replace(at=round(line.at, 3)) for line in before or []]
    assert [line.text for line in kept(gone, "web~0", previous=True) or []] == [b"one\n", b"two\n"]
    assert (state.root / "gone").stat().st_mode & 0o777 == 0o700


def test_only_its_end_is_kept(state: StateDirectory, gone: Gone) -> None:
    lines = [f"{number:0>99}\n" for number in range(4000)]
    wrote(state, "web", "".join(lines), max_bytes=150_000)
    gone.keep("web")
    found = [line.text.decode() for line in kept(gone, "web") or []]
    assert found == lines[-len(found) :]
    assert module.KEPT_BYTES - 100 < sum(map(len, found)) <= module.KEPT_BYTES


def test_of_a_line_that_is_too_long_the_end_is_kept(state: StateDirectory, gone: Gone) -> None:
    wrote(state, "web", "short\n" + "x" * 300_000 + "end\n")
    gone.keep("web")
    (line,) = kept(gone, "web") or []
    assert (len(line.text), line.text[-5:]) == (module.KEPT_BYTES, b"xend\n")


def test_it_goes_after_an_hour_also_where_the_clock_was_wrong(
    state: StateDirectory, gone: Gone, clock: StillClock
) -> None:
    began = clock.seconds
    wrote(state, "web", "x\n")
    gone.keep("web")
    assert gone.logs("web") == (state.root / "gone" / "web", clock.now())
    clock.seconds = began + HOUR - 1
    assert kept(gone, "web")
    clock.seconds = began - HOUR - 1
    assert kept(gone, "web") is None
    clock.seconds = began
    gone.keep("web")
    clock.seconds = began + HOUR + 1
    gone.sweep()
    assert list((state.root / "gone").iterdir()) == []


def test_the_newest_stay_where_many_go(state: StateDirectory, gone: Gone, clock: StillClock) -> None:
    for number in range(module.KEPT_PODS + 3):
        clock.seconds += 1
        wrote(state, f"web~{number}", "x\n")
        gone.keep(f"web~{number}")
    left = {path.name for path in (state.root / "gone").iterdir()}
    assert left == {f"web~{number}" for number in range(3, module.KEPT_PODS + 3)}


def test_a_pod_takes_the_place_of_an_earlier_one_of_its_name(state: StateDirectory, gone: Gone) -> None:
    for text in ("old\n", "new\n", ""):
        wrote(state, "web", text)
        gone.keep("web")
        state.remove("web")
        found = kept(gone, "web")
        assert [line.text.decode() for line in found or []] == [text] * bool(text)


def test_without_room_nothing_is_kept_and_nothing_fails(
    state: StateDirectory, gone: Gone, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(state, "web", "x\n")

    def full() -> None:
        raise StateUnsaved("disk full")

    monkeypatch.setattr(state, "require_room", full)
    gone.keep("web")
    assert kept(gone, "web") is None
    monkeypatch.undo()
    (state.root / "gone").write_text("in the way")
    gone.keep("web")
    assert kept(gone, "web") is None


def test_a_log_that_cannot_be_read_keeps_no_pod_from_its_removal(state: StateDirectory, gone: Gone) -> None:
    state.create("web")
    (state.logs("web") / "current.log").mkdir()
    gone.keep("web")
    assert kept(gone, "web") is None


@pytest.mark.parametrize("name", ["..", "../instances/web", "/etc", "a/b", ""])
def test_no_name_leads_out_of_the_folder(state: StateDirectory, gone: Gone, name: str) -> None:
    wrote(state, "web", "x\n")
    with pytest.raises(InputInvalid):
        gone.logs(name)
