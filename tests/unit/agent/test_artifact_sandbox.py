"""What is unpacked of an archive, and what is refused: by the process that really does it."""

from __future__ import annotations

import gzip
import importlib
import io
import marshal
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from farmd.agent.artifacts.cache import SANDBOX
from farmd.agent.artifacts.rules import zstd_from

Entry = tuple[str, dict[str, Any], bytes]


def tar(*entries: Entry, mode: str = "w:gz") -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode=mode) as archive:  # type: ignore[call-overload]
        for name, fields, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return into.getvalue()


def zipped(*entries: tuple[str, int, bytes]) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, content in entries:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            archive.writestr(info, content)
    return into.getvalue()


def run(**spec: Any) -> str:
    """What the process says; empty: it did it."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SANDBOX)],
        input=marshal.dumps(
            {"parent": os.getpid(), "reserve": 0, "most": 1 << 20, "entries": 100, "zstd": zstd_from()} | spec
        ),
        capture_output=True,
        check=False,
    )
    assert (done.returncode == 0) == (not done.stdout), done
    return done.stdout.decode()


def unpacked(folder: Path, body: bytes, kind: str = "tar.gz", **spec: Any) -> str:
    part, into = folder / "part", folder / "tree"
    part.write_bytes(body)
    into.mkdir()
    said = run(part=str(part), into=str(into), kind=kind, **spec)
    assert not (folder / "escaped").exists()
    return said


def file(name: str, content: bytes = b"x", **fields: Any) -> Entry:
    return name, fields, content


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return name, {"type": kind, "linkname": to}, b""


def test_files_folders_and_links_are_there_and_nobody_may_change_them(tmp_path: Path) -> None:
    body = tar(
        file("./app/bin/run", b"#!/bin/sh\n", mode=0o775),
        file("app/etc/conf", b"a=b", mode=0o600),
        link("app/current", "bin/run"),
        link("app/etc/up", "../bin"),
        link("app/same", "app/etc/conf", tarfile.LNKTYPE),
        ("app/empty", {"type": tarfile.DIRTYPE, "mode": 0o2700}, b""),
    )
    assert not unpacked(tmp_path, body)
    app = tmp_path / "tree" / "app"
    modes = {each.name: oct(each.stat().st_mode & 0o7777) for each in (app, *app.rglob("*"))}
    assert modes["run"] == modes["current"] == modes["app"] == modes["empty"] == "0o555"
    assert modes["conf"] == modes["same"] == "0o444"
    assert (app / "etc/up/run").read_bytes() == (app / "current").read_bytes() == b"#!/bin/sh\n"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([file("../escaped")], "'../escaped' leaves the folder"),
        ([file("/escaped")], "'/escaped' leaves the folder"),
        ([file("a/../../escaped")], "leaves the folder"),
        ([link("a", "/etc/passwd")], "'a' is a link to '/etc/passwd', which could leave"),
        ([link("a", "../x")], "could leave"),
        ([link("a/b", "c/../../x")], "could leave"),
        ([link("d/e/s", "../.."), link("d/e/l", "s/../../f")], "could leave"),
        ([link("a", ".."), file("a/escaped")], "could leave"),
        ([link("a", "b"), file("a/escaped")], "below a link"),
        ([file("a"), file("a/b")], "below a link or a file"),
        ([link("a", "/etc/passwd", tarfile.LNKTYPE)], "leaves the folder"),
        ([link("a", "b", tarfile.LNKTYPE)], "which is no file in the archive"),
        ([file("a"), file("./a")], "'./a' is in the archive more than once"),
        ([("dev", {"type": tarfile.BLKTYPE}, b"")], "a device, a pipe"),
        ([("dev", {"type": tarfile.CHRTYPE}, b"")], "a device, a pipe"),
        ([("pipe", {"type": tarfile.FIFOTYPE}, b"")], "a device, a pipe"),
        ([file("su", mode=0o4755)], "'su' has the set-user-ID"),
        ([file("sg", mode=0o2755)], "'sg' has the set-user-ID or set-group-ID"),
        ([file(f"f{at}") for at in range(101)], "more than 100 files"),
        ([file("/".join(["d"] * 101))], "folders deep"),
        ([file("bomb", bytes(2 << 20))], "larger than 1048576 bytes (agent.artifact_max_unpacked)"),
    ],
)
def test_an_archive_that_could_do_harm_is_refused(tmp_path: Path, entries: list[Entry], words: str) -> None:
    assert words in unpacked(tmp_path, tar(*entries))


def zstd(body: bytes) -> bytes:
    """A tar.gz as tar.zst."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    made: bytes = importlib.import_module(name).compress(gzip.decompress(body))
    return made


def test_an_archive_of_zstd_is_unpacked_with_the_same_bounds(tmp_path: Path) -> None:
    good = zstd(tar(file("app/run", b"x" * 300_000, mode=0o755), link("app/now", "run")))
    bad = {
        "a bomb": (zstd(tar(file("bomb", bytes(64 << 20)))), "larger than 1048576 bytes"),
        "a path": (zstd(tar(file("../escaped"))), "leaves the folder"),
        "an early end": (good[:-20], "it is not a good tar.zst"),
        "other content": (b"this is a page that says not found" * 40, "it is not a good tar.zst"),
        "a window of 2 GB": (b"\x28\xb5\x2f\xfd\x00\xa8" + bytes(100), "it is not a good tar.zst"),
    }
    for name, (body, words) in bad.items():
        (tmp_path / name).mkdir()
        assert words in unpacked(tmp_path / name, body, "tar.zst"), name
    assert not unpacked(tmp_path, good, "tar.zst")
    assert (tmp_path / "tree/app/now").read_bytes() == b"x" * 300_000


def test_an_agent_without_zstd_says_so(tmp_path: Path) -> None:
    assert "farmd's extra [zstd]" in unpacked(tmp_path, b"", "tar.zst", zstd=None)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_what_is_no_such_archive_is_told(tmp_path: Path, kind: str) -> None:
    assert kind in unpacked(tmp_path, b"this is a page that says not found" * 40, kind)


def test_a_gzip_that_ends_early_is_told(tmp_path: Path) -> None:
    whole = tar(file("a", os.urandom(100_000)))
    assert "tar.gz" in unpacked(tmp_path, whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("../escaped", 0o644, b"x")], "leaves the folder"),
        ([("a", 0o120777, b"/etc/passwd")], "could leave"),
        ([("su", 0o104755, b"x")], "set-user-ID"),
        ([("pipe", 0o010644, b"")], "a device, a pipe"),
        ([("bomb", 0o644, bytes(2 << 20))], "larger than"),
        ([("bin/run", 0o100755, b"x"), ("l", 0o120777, b"bin/run")], ""),
    ],
)
def test_a_zip_is_judged_alike(tmp_path: Path, entries: list[tuple[str, int, bytes]], words: str) -> None:
    said = unpacked(tmp_path, zipped(*entries), "zip")
    assert words in said
    if not words:
        assert not said
        assert (tmp_path / "tree" / "l").stat().st_mode & 0o777 == 0o555


def copied(source: Path, allowed: Path, user: Any = None) -> str:
    part = source.parent / "part"
    return run(path=str(source), part=str(part), folders=[str(allowed)], user=user)


def test_a_file_of_the_node_is_read_below_an_allowed_folder_by_where_it_leads(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "good").write_bytes(b"good")
    (outside / "other").write_bytes(b"other")
    (inside / "led").symlink_to(outside / "other")
    os.mkfifo(inside / "pipe")
    assert not copied(inside / "good", inside)
    assert (inside / "part").read_bytes() == b"good"
    assert "agent.allow does not list" in copied(inside / "led", inside)
    assert "not a regular file" in copied(inside / "pipe", inside)
    assert "No such file" in copied(inside / "none", inside)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_file_that_the_pods_user_may_not_read_is_not_read_for_it() -> None:
    nobody = (65534, 65534, [])
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o711)
        secret = folder / "secret"
        secret.write_bytes(b"of root")
        secret.chmod(0o600)
        assert "Permission denied for the user that the pod runs as" in copied(secret, folder, nobody)
        assert not (folder / "part").read_bytes()
        secret.chmod(0o644)
        assert not copied(secret, folder, nobody)
