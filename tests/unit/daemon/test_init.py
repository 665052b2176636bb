"""``farmd init``: what a host needs, from a package alone, and nothing that a person changed is touched."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from farmd.__main__ import main
from farmd.config import shipped
from farmd.config.sources import load
from farmd.process import init
from tests.farmctl import ROOT, output_of


def run(root: Path, *arguments: str, typed: str = "") -> Result:
    return ask(root, "-y", *arguments, typed=typed)


def ask(root: Path, *arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(main, ["init", *arguments, "--root", str(root)], input=typed)


def files(root: Path) -> dict[str, str]:
    return {str(each.relative_to(root)): each.read_text() for each in root.rglob("*") if each.is_file()}


@pytest.mark.parametrize(("role", "unit"), [("server", "farmd"), ("node", "farmd-agent")])
def test_a_role_gets_its_files_and_each_is_told(tmp_path: Path, role: str, unit: str) -> None:
    done = run(tmp_path, role, "--address", "10.0.0.11", "--token-file", "-", typed="secret-1\n")
    assert done.exit_code == 0, done.output
    made = files(tmp_path)
    assert {name for name in made if "notify-reload" not in name} == {
        "etc/farmd/farmd.toml",
        f"etc/default/{unit}",
        f"etc/systemd/system/{unit}.service",
        "etc/sysusers.d/farmd.conf",
        "etc/tmpfiles.d/farmd.conf",
        f"etc/credstore/{unit}-token",
    }
    for name in made:
        assert f"write   {tmp_path / name}" in done.output
    assert "secret-1" not in done.output
    assert done.output.splitlines()[-1].endswith(f"systemctl enable --now {unit}")
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in made}
    assert (modes[f"etc/credstore/{unit}-token"], modes[f"etc/default/{unit}"]) == (0o600, 0o600)
    assert (tmp_path / "etc/credstore").stat().st_mode & 0o777 == 0o700
    assert made[f"etc/credstore/{unit}-token"] == "secret-1\n"


def test_the_configuration_shows_every_key_and_sets_only_what_was_asked_for(tmp_path: Path) -> None:
    run(tmp_path, "node", "--name", "web-1", "--address", "10.0.0.11", "--consul", "10.0.0.1:8500")
    file = tmp_path / "etc/farmd/farmd.toml"
    said = {section: keys for section, keys in tomllib.loads(file.read_text()).items() if keys}
    assert said == {
        "agent": {"node": "web-1"},
        "store": {"address": "10.0.0.1:8500"},
        "web": {"bind": "0.0.0.0", "advertise": "10.0.0.11"},
    }
    uncommented = "".join(
        line.removeprefix("#") + "\n" if line.startswith("#") and line[1:2] != " " else line + "\n"
        for line in file.read_text().splitlines()
    )
    defaults = tmp_path / "defaults.toml"
    defaults.write_text(uncommented)
    assert load(defaults, {}).config == load(file, {}).config


def test_what_a_person_changed_stays_and_both_roles_share_a_host(tmp_path: Path) -> None:
    run(tmp_path, "server", "--address", "10.0.0.11")
    for name in ("etc/default/farmd", "etc/systemd/system/farmd.service"):
        (tmp_path / name).write_text("# mine\n")
    before = files(tmp_path)
    again = run(tmp_path, "server", "--address", "10.0.0.11")
    assert files(tmp_path) == before
    assert f"keep    {tmp_path}/etc/farmd/farmd.toml\n" in again.output
    assert f"keep    {tmp_path}/etc/default/farmd: it differs from what init would write\n" in again.output
    assert run(tmp_path, "node", "--address", "10.0.0.11").exit_code == 0
    assert files(tmp_path).items() > before.items()


def test_another_value_than_that_of_the_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run(tmp_path, "server", "--address", "10.0.0.11")
    before = files(tmp_path)
    refused = run(tmp_path, "node", "--name", "web-1", "--address", "10.0.0.12")
    assert (refused.exit_code, files(tmp_path)) == (78, before)
    toml = tmp_path / "etc/farmd/farmd.toml"
    assert f'farmd: {toml}: web.advertise: found "10.0.0.11", expected "10.0.0.12"' in refused.output
    assert f"{toml}: agent.node: found " in refused.output


def test_bad_values_and_bad_tokens_are_one_line(tmp_path: Path) -> None:
    refused = run(tmp_path, "node", "--name", "a b")
    assert refused.exit_code == 78
    assert refused.output.startswith("farmd: init: agent.node: found 'a b'")
    refused = run(tmp_path, "node", "--token-file", "-", typed="two\nlines\n")
    assert refused.exit_code == 78
    assert (
        refused.output == "farmd: --token-file: found 2 lines on stdin, expected a token alone on one line\n"
    )
    for option in ("--name", "--address", "--consul", "--token-file"):
        refused = run(tmp_path, "node", option, "")
        assert (refused.exit_code, refused.output.split(":")[1]) == (78, f" {option}")
    refused = ask(tmp_path, "node", "--dry-run", "--token-file", str(tmp_path / "none"))
    assert (refused.exit_code, "--token-file: " in refused.output) == (78, True)
    assert files(tmp_path) == {}


def test_a_new_token_takes_the_place_of_the_former_one(tmp_path: Path) -> None:
    for token in ("one", "two"):
        run(tmp_path, "node", "--token-file", "-", typed=token)
    assert files(tmp_path)["etc/credstore/farmd-agent-token"] == "two\n"


def test_what_a_package_brings_is_not_put_beside_it(tmp_path: Path) -> None:
    for name in ("systemd/system/farmd.service", "sysusers.d/farmd.conf", "tmpfiles.d/farmd.conf"):
        (tmp_path / "usr/lib" / name).parent.mkdir(parents=True)
        (tmp_path / "usr/lib" / name).touch()
    done = run(tmp_path, "server")
    assert {name for name in files(tmp_path) if name.startswith("etc/")} == {
        "etc/farmd/farmd.toml",
        "etc/default/farmd",
    }
    assert f"keep    {tmp_path}/usr/lib/sysusers.d/farmd.conf: the package installed it\n" in done.output
    assert done.output.endswith("next: systemctl enable --now farmd\n")


def test_a_unit_starts_the_program_that_was_called() -> None:
    wish = init.Wish("node", Path("/nonexistent"), "/usr/local/bin/farmd", systemd=257)
    found = {file.path: file.text for file in init.files(wish)}
    assert "\nExecStart=/usr/local/bin/farmd agent\n" in found["etc/systemd/system/farmd-agent.service"]
    reload = found["etc/systemd/system/farmd-agent.service.d/notify-reload.conf"]
    assert reload == shipped.text("systemd/notify-reload.conf")
    assert init.program_of("/opt/x/farmd", "/usr/bin/python3") == "/opt/x/farmd"
    assert init.program_of("/x/farmd/__main__.py", "/opt/y/bin/python") == "/opt/y/bin/farmd"


def test_without_a_terminal_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    refused = ask(tmp_path, "node")
    assert (refused.exit_code, files(tmp_path), [*tmp_path.iterdir()]) == (1, {}, [])
    assert len(refused.output.splitlines()) == 1
    assert refused.output.endswith("pass -y to continue, or --dry-run to preview\n")
    assert run(tmp_path, "node").exit_code == 0
    again = ask(tmp_path, "node")  # nothing is left to write, so there is nothing to ask
    assert (again.exit_code, again.output.splitlines()[-1][:5]) == (0, "next:")


def test_a_dry_run_lists_each_file_and_writes_none(tmp_path: Path) -> None:
    run(tmp_path, "server", "--token-file", "-", typed="one")
    before = files(tmp_path)
    told = ask(tmp_path, "node", "--token-file", "-", "--dry-run").output.splitlines()
    assert files(tmp_path) == before
    new = {line.split(":")[0].removeprefix("write   ") for line in told if line.startswith("write ")}
    assert f"keep    {tmp_path}/etc/farmd/farmd.toml" in told
    run(tmp_path, "node", "--token-file", "-", typed="two")
    assert {str(tmp_path / name) for name in files(tmp_path).keys() - before.keys()} == new


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_on_a_terminal_it_shows_the_plan_and_asks_and_hides_the_token(
    tmp_path: Path, answer: str, code: int
) -> None:
    main_side, side = pty.openpty()
    words = [sys.executable, "-m", "farmd", "init", "node", "--root", str(tmp_path), "--token-file", "-"]
    process = subprocess.Popen(words, stdin=side, stdout=side, stderr=side, start_new_session=True, cwd=ROOT)
    os.close(side)
    said = ""
    for text in output_of(main_side):
        if (said := said + text).endswith("token: "):
            os.write(main_side, b"typed-1\n")
        if said.endswith("[y/N]: "):
            assert f"write   {tmp_path}/etc/credstore/farmd-agent-token: the token, mode 0600" in said
            assert files(tmp_path) == {}
            os.write(main_side, f"{answer}\n".encode())
    assert process.wait(60) == code, said
    os.close(main_side)
    assert "typed-1" not in said
    assert files(tmp_path).get("etc/credstore/farmd-agent-token") == ("typed-1\n" if answer == "y" else None)
    assert bool(files(tmp_path)) == (answer == "y")
