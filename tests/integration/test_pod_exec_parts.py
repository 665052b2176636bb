"""What a command in a pod needs of the pod: a sidecar that runs, a ``tar`` to copy with."""

from __future__ import annotations

import os
from pathlib import Path

from store.manifests import Restart, Sidecar
from tests.agents import Agents, shell
from tests.integration.test_pod_exec import fleet_of

ME = os.getpid()
HOUR = Restart(initial=3600, maximum=3600)


async def test_a_command_beside_a_sidecar_needs_one_that_runs(rig: Agents, tmp_path: Path) -> None:
    sidecars = [
        Sidecar(name="ship", command=["sleep", f"5006.{ME}"]),
        Sidecar(name="done", command=["sh", "-c", "exit 3"]),
    ]
    pod = shell(f"exec sleep 5005.{ME}", sidecars=sidecars, restart=HOUR, env={"GREETING": "hello"})
    async with fleet_of(rig, tmp_path, pod) as fleet:
        await rig.until(lambda r: r.sidecars and not r.sidecars["done"].runs)
        for name, told in (
            ("ship", (0, "hello\n", "")),
            ("main", (0, "hello\n", "")),
            ("done", (5, "", "sidecar 'done' does not run now: exited with code 3")),
            ("other", (5, "", "process: found 'other', expected one of main, ship, done")),
        ):
            done = await fleet.ctl("pod", "exec", "web", "-p", name, "--", "sh", "-c", "echo $GREETING")
            assert (done.code, done.out, done.err.partition(": its agent refused: ")[2].strip()) == told
        rows = (await fleet.ctl("audit", "list", "-o", "json")).json["items"]
        assert {row["after"]["process"] for row in rows} == {"ship", "main", "done", "other"}
        assert sorted(str(note.how.get("error", "")) for note in await fleet.ends(4)) == [
            "",
            "",
            "refused: process: found 'other', expected one of main, ship, done",
            "refused: sidecar 'done' does not run now: exited with code 3",
        ]


async def test_a_pod_without_tar_gets_one_line(rig: Agents, tmp_path: Path) -> None:
    pod = shell(f"exec /bin/sleep 5007.{ME}", env={"PATH": "/nonexistent"})
    async with fleet_of(rig, tmp_path, pod) as fleet:
        (tmp_path / "file").write_text("x")
        for words in (("web:x", str(tmp_path / "there")), (str(tmp_path / "file"), "web:x")):
            done = await fleet.ctl("pod", "cp", *words)
            why = "farmctl: node 'n1': its agent refused: command tar: No such file or directory"
            assert (done.code, done.err.splitlines()[0]) == (5, why)


async def test_an_engines_words_in_place_of_an_archive_are_not_taken_for_one(
    rig: Agents, tmp_path: Path
) -> None:
    tar = tmp_path / "tar"
    tar.write_text("#!/bin/sh\necho 'exec: \"tar\": executable file not found in $PATH'; exit 127\n")
    tar.chmod(0o755)
    pod = shell(f"exec /bin/sleep 5008.{ME}", env={"PATH": str(tmp_path)})
    async with fleet_of(rig, tmp_path, pod) as fleet:
        for words in (("web:x", str(tmp_path / "there")), (str(tar), "web:x")):
            done = await fleet.ctl("pod", "cp", *words)
            why = "farmctl: web: it has no tar that runs there (exit code 127), and copying needs one"
            assert (done.code, done.err.splitlines()[0]) == (9, why)
        assert not (tmp_path / "there").exists()
