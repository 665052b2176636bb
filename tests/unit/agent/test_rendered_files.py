"""The files of a start: where each runtime sees them, and what a change does to them."""

from __future__ import annotations

from pathlib import Path

from farmd.agent.rendering import Rendered, path_of, write
from farmd.agent.runtimes import container_files
from store.containers import Container, File
from store.manifests import Manifest

FILES = [File(path="/etc/up.conf", template="{{ env.A }}", mode=0o440), File(path="/etc/x", content="plain")]


def manifest(runtime: str) -> Manifest:
    container = Container(image="nginx") if runtime == "container" else None
    return Manifest(id="web", runtime=runtime, container=container, command=["x"], files=FILES)  # type: ignore[arg-type]


def test_a_container_sees_each_rendered_file_under_its_path_and_the_others_as_before(tmp_path: Path) -> None:
    pod = manifest("container")
    given = Rendered([(0, FILES[0], b"one")], tmp_path / "rendered" / "s1")
    binds = given.lay_out(pod, None)
    assert [there for _, there in binds] == ["/etc/up.conf"]
    here = Path(binds[0][0])
    assert (here.read_bytes(), here.stat().st_mode & 0o777) == (b"one", 0o440)
    others = container_files.lay_out(tmp_path / "files", pod, tmp_path)
    assert [there for _, there in others] == ["/etc/x"]


def test_a_bound_file_changes_in_place_and_that_of_a_process_is_another_one(tmp_path: Path) -> None:
    here = tmp_path / "up.conf"
    write(here, b"a longer text", (here.parent.stat().st_uid, here.parent.stat().st_gid), 0o444, fresh=True)
    before = here.stat().st_ino
    write(here, b"short", (0, 0), 0o444, fresh=False)
    assert (here.read_bytes(), here.stat().st_ino) == (b"short", before)
    owner = (here.stat().st_uid, here.stat().st_gid)
    write(here, b"fresh", owner, 0o444, fresh=True)
    assert (here.read_bytes(), here.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (
        b"fresh",
        0o444,
        [here],
    )


def test_a_process_finds_all_its_files_by_their_names(tmp_path: Path) -> None:
    files = [File(path="up.conf", template="x"), File(path="plain", content="y")]
    pod = Manifest(id="web", command=["x"], files=files)
    given = Rendered([(0, files[0], b"x"), (1, files[1], b"y")], tmp_path / "rendered" / "s1")
    assert given.lay_out(pod, None) == []
    assert [path_of(given.folder, at, each, pod).read_bytes() for at, each in enumerate(files)] == [
        b"x",
        b"y",
    ]
