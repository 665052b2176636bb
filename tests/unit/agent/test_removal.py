"""What workloads left is removed whatever it is; what must stay is named, and holds up nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from farmd.agent import removal
from farmd.agent.errors import NotRemoved
from farmd.agent.removal import Trash
from farmd.agent.state import StateDirectory


@pytest.fixture
def trash(tmp_path: Path) -> Trash:
    return Trash(tmp_path / "trash")


def removed(trash: Trash, path: Path) -> dict[str, str]:
    assert trash.throw(path) == ""
    assert not os.path.lexists(path)
    left = trash.empty()
    assert left is not None
    return left


def nested(folder: Path, depth: int, name: str = "x" * 200) -> None:
    """Folders so deep that no path can name the last one."""
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    os.close(fd)


def test_folders_that_no_path_can_name(trash: Trash, tmp_path: Path) -> None:
    nested(tmp_path / "web", 3000)
    assert removed(trash, tmp_path / "web") == {}
    assert not list((tmp_path / "trash").iterdir())


def test_odd_names_and_modes(trash: Trash, tmp_path: Path) -> None:
    web = tmp_path / "web"
    for name in (b"\xff\xfe\n", b"-rf", b"web.0", b"a.b"):
        (web / os.fsdecode(name) / "deep").mkdir(parents=True)
        (web / os.fsdecode(name) / "deep" / os.fsdecode(name)).touch()
        (web / os.fsdecode(name)).chmod(0)
    os.mkfifo(web / "pipe")
    web.chmod(0)
    assert removed(trash, web) == {}
    assert not list((tmp_path / "trash").iterdir())


def test_a_link_is_removed_and_what_it_leads_to_stays(trash: Trash, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "folder").mkdir(parents=True)
    (kept / "folder" / "file").touch()
    web = tmp_path / "web"
    web.mkdir()
    (web / "link").symlink_to(kept)
    (web / "deep").mkdir()
    (web / "deep" / "link").symlink_to(kept / "folder")
    assert removed(trash, web) == {}
    assert removed(trash, _link(tmp_path / "itself", kept)) == {}
    assert (kept / "folder" / "file").exists()
    assert not list((tmp_path / "trash").iterdir())


def _link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


@pytest.mark.whole  # needs root
def test_a_mount_that_was_left_is_not_entered_and_holds_up_nothing_else(trash: Trash, tmp_path: Path) -> None:
    kept, web = tmp_path / "kept", tmp_path / "web"
    kept.mkdir()
    (kept / "file").touch()
    (web / "work" / "mounted").mkdir(parents=True)
    (web / "work" / "other").mkdir()
    subprocess.run(["mount", "--bind", kept, web / "work" / "mounted"], check=True)
    try:
        left = removed(trash, web)
        assert set(left.values()) == {"something is mounted there"}
        assert (kept / "file").exists()
        (tmp_path / "db").mkdir()
        assert set(removed(trash, tmp_path / "db")) == set(left)
    finally:
        subprocess.run(["umount", *(tmp_path / "trash").rglob("mounted")], check=True)
    assert trash.empty() == {}
    assert not list((tmp_path / "trash").iterdir())


@pytest.mark.whole  # needs root
def test_what_is_immutable_stays_and_is_named(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = tmp_path / "web"
    (web / "deep").mkdir(parents=True)
    locked = web / "deep" / "locked"
    locked.touch()
    (web / "deep" / "free").touch()
    if subprocess.run(["chattr", "+i", locked], check=False, capture_output=True).returncode:
        pytest.fail("this file system has no immutable files: run the tests on ext4, xfs or btrfs")
    assert set(removed(trash, web).values()) == {"it is immutable, or belongs to another user"}
    (left,) = (tmp_path / "trash").rglob("locked")
    assert [each.name for each in left.parent.iterdir()] == ["locked"]
    subprocess.run(["chattr", "-i", left], check=True)
    assert trash.empty() == {}


@pytest.mark.whole  # needs root
def test_what_stays_is_told_where_it_is_until_it_is_gone(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    web = state.directory("web")
    web.mkdir(parents=True)
    subprocess.run(["chattr", "+i", web], check=True)
    why = "it is immutable, or belongs to another user"
    try:
        with pytest.raises(NotRemoved):
            state.remove("web")
        state.empty_trash()
        assert state.left == {str(web): why}
    finally:
        subprocess.run(["chattr", "-i", web], check=True)
    (web / "locked").touch()
    subprocess.run(["chattr", "+i", web / "locked"], check=True)
    state.remove("web")
    state.empty_trash()
    (locked,) = state.root.rglob("locked")
    subprocess.run(["chattr", "-i", locked], check=True)
    assert state.left == {str(locked.parent): why}
    state.empty_trash()
    assert state.left == {}


@pytest.mark.whole  # needs root
def test_what_stays_of_an_instance_that_is_wanted_again_is_told_no_longer(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.instances.mkdir(parents=True)
    state.create("web")
    subprocess.run(["chattr", "+i", state.directory("web")], check=True)
    try:
        with pytest.raises(NotRemoved):
            state.remove("web")
        assert str(state.directory("web")) in state.left
    finally:
        subprocess.run(["chattr", "-i", state.directory("web")], check=True)
    state.create("web")
    assert state.left == {}


def test_a_process_that_goes_on_writing_does_not_hold_it_up_for_ever(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "file").touch()
    real = removal._listed

    def listed(folder: int) -> list[os.DirEntry[str]]:
        os.close(os.open("again", os.O_CREAT, dir_fd=folder))
        return real(folder)

    monkeypatch.setattr(removal, "_listed", listed)
    (why,) = removed(trash, tmp_path / "web").values()
    assert "a process keeps writing into it" in why


def test_more_entries_than_one_listing(trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "BATCH", 7)
    web = tmp_path / "web"
    web.mkdir()
    for number in range(1000):
        (web / str(number)).touch()
    assert removed(trash, web) == {}


def test_one_huge_folder_delays_no_other_one(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is thrown away meanwhile gets its turn, too."""
    monkeypatch.setattr(removal, "BATCH", 7)
    for name, files in (("huge", 1000), ("small", 3)):
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / str(number)).touch()
    (tmp_path / "huge" / "deep").mkdir()
    turns, real = list[str](), trash._remove

    def remove(folder: int, name: str, waiting: list[str]) -> bool:
        if not turns:
            assert trash.throw(tmp_path / "small") == ""
        turns.append(name.partition(".")[0])
        return real(folder, name, waiting)

    monkeypatch.setattr(trash, "_remove", remove)
    assert removed(trash, tmp_path / "huge") == {}
    assert turns.index("small") < 5
    assert turns.count("huge") > 100
    assert not list((tmp_path / "trash").iterdir())


def test_a_process_that_stops_leaves_the_rest_to_its_successor(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "BATCH", 1)
    (tmp_path / "web").mkdir()
    for number in range(5):
        (tmp_path / "web" / str(number)).touch()
    assert trash.throw(tmp_path / "web") == ""
    trash.stop()
    assert trash.empty() == {}
    assert list((tmp_path / "trash").iterdir())
    assert Trash(tmp_path / "trash").empty() == {}
    assert not list((tmp_path / "trash").iterdir())
