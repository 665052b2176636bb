"""The files of a start: where each runtime sees them, and what a change does to them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from farmd.agent import rendering
from farmd.agent.endpoints import Endpoints
from farmd.agent.errors import StartFailed
from farmd.agent.rendering import Rendered, Renderer, holds, path_of, write
from farmd.agent.runtimes import container_files
from farmd.agent.state import StateDirectory
from store.containers import Container, File
from store.manifests import Manifest

FILES = [File(path="/etc/up.conf", template="{{ env.A }}", mode=0o440), File(path="/etc/x", content="plain")]

ENDPOINTS = Endpoints(cast("Any", None), cast("Any", None), cast("Any", None), cast("Any", None), "")


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


def test_a_file_that_its_workload_made_huge_is_not_read(tmp_path: Path) -> None:
    here = tmp_path / "up.conf"
    here.write_bytes(b"one")
    assert holds(here, b"one")
    assert not holds(here, b"on")
    os.truncate(here, 1 << 40)  # no memory holds this
    assert not holds(here, b"one")


async def told(text: str) -> str:
    """Why a template is not rendered; empty: it is."""
    renderer = Renderer("n1", StateDirectory(Path("/nonexistent")), ENDPOINTS, os.environ)
    file = File(path="x", template=text)
    try:
        await renderer._rendered("web", file, {"A": "b"}, set())
    except StartFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "text",
    [
        "{{ service('../../v1/pods?x=') }}",
        "{{ service('x' * 1000000) }}",
        "{{ service('\\ud800') }}",
        "{{ service(1.5) }}",
        "{{ '{0!\\ud800}'.format(1) }}",
        "{{ '\\ud800' }}",
    ],
)
async def test_r45_a_template_asks_for_no_path_and_breaks_no_answer(text: str) -> None:
    found = await told(text)
    assert found.startswith("files: x: template: ")
    assert len(found.splitlines()) == 1
    assert len(found) < 400
    assert ENDPOINTS.wanted("web") == frozenset()


async def test_r45_few_templates_of_a_node_are_rendered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "render.py"
    child.write_text(
        "import json, os, pathlib, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "mine = folder / f'{os.getpid()}.now'\n"
        "mine.touch()\n"
        "time.sleep(0.1)\n"
        "print(json.dumps({'text': str(len(list(folder.glob('*.now'))))}))\n"
        "mine.unlink()\n"
    )
    monkeypatch.setattr(rendering, "CHILD", child)
    renderer = Renderer("n1", StateDirectory(tmp_path), ENDPOINTS, os.environ)
    file = File(path="x", template="x")
    found = await asyncio.gather(*(renderer._rendered(f"web~{at}", file, {}, set()) for at in range(12)))
    assert max(int(text) for text, _ in found) <= rendering.MOST_CHILDREN
