"""The command line itself: options in both places, usage errors, lazy start, completion scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from farmd.cli.failures import exit_code, hint, report
from farmd.cli.main import farmctl, run
from farmd.cli.options import Duration, command
from farmd.cli.settings import Settings
from farmd.runtime import errors as ours
from scheduler.errors import SchedulerError
from store import errors

ROOT = Path(__file__).parents[3]
HEAVY = {"asyncio", "aiohttp", "msgspec", "rich", "yaml", "structlog", "ssl", "store", "importlib.metadata"}


def all_commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name in group.list_commands(context):
        item = group.get_command(context, name)
        assert item is not None, name
        found.append(((*path, name), item))
        if isinstance(item, click.Group):
            found += all_commands(item, (*path, name))
    return found


COMMANDS = all_commands(farmctl)


def test_help_tells_nothing_that_only_code_asks_and_names_no_command_that_is_not_there() -> None:
    known = {" ".join(each) for each, _ in COMMANDS}
    for path, item in COMMANDS:
        assert "Raises:" not in (item.help or ""), path
    for option in (option for _, item in COMMANDS for option in item.params):
        told = getattr(option, "help", None) or ""
        if told.startswith("As a file that "):
            named = told.removeprefix("As a file that ").removesuffix(" accept.").removesuffix(" accepts.")
            assert {*named.split(" and ")} <= known, told


def test_each_option_takes_its_own_default() -> None:
    for path, item in COMMANDS:
        context = click.Context(item, info_name=" ".join(path))
        for option in item.params:
            if isinstance(default := option.get_default(context), str | int | float):
                option.type_cast_value(context, default)


@pytest.mark.parametrize("asked", [["--help"], ["rc", "--help"], ["daemonset", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(asked: list[str]) -> None:
    code = (
        f"import sys; from farmd.cli.main import run; assert run({asked!r}) == 0;"
        f"print('loaded', sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_help_of_a_service_to_run_imports_no_client_of_registries() -> None:
    code = (
        "import sys; from farmd.cli.main import run; assert run(['service', 'run', '--help']) == 0;"
        "print('farmd.deploy.registry' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_every_command_and_option_explains_itself() -> None:
    for path, item in COMMANDS:
        assert CliRunner().invoke(farmctl, [*path, "--help"]).exit_code == 0, path
        assert item.help, path
        for param in item.params:
            assert not isinstance(param, click.Option) or param.help, (path, param.name)


def test_the_promised_commands_exist() -> None:
    promised = """rc create, rc list, rc get, rc set-replicas, rc enable, rc disable, rc delete, rc pods,
        rc logs, daemonset logs,
        rc update, rc describe, rc explain, node list, node describe, node register, node label,
        node cordon, node uncordon, pod list, pod logs,
        audit list, failsafe status, failsafe clear, top, token create, completion"""
    assert {name.strip() for name in promised.split(",")} <= {" ".join(path) for path, _ in COMMANDS}


def test_no_option_takes_a_token() -> None:
    names = {name for _, item in COMMANDS for param in item.params for name in param.opts}
    assert "--token" not in names
    assert "--token-file" in names


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["rc", "nope"],
        ["rc", "list", "--nope"],
        ["rc", "list", "-o", "xml"],
        ["rc", "get"],
        ["rc", "create"],
        ["rc", "set-replicas", "hello"],
        ["rc", "set-replicas", "hello", "many"],
        ["rc", "delete"],
        ["rc", "enable", "hello", "--timeout", "soon"],
        ["failsafe", "clear", "rcs", "--for", "10m"],
        ["failsafe", "clear", "rcs", "--evidence", "x"],
        ["completion", "tcsh"],
        ["audit", "list", "--limit", "0"],
    ],
)
def test_usage_errors_exit_2_with_one_line_and_a_hint(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.splitlines()
    assert first.startswith("farmctl: ")
    assert second.startswith("hint: farmctl")


def settings_of(arguments: list[str]) -> Settings:
    """The settings that a probe command below the root sees."""
    seen: list[Settings] = []

    @click.pass_context
    def probe(ctx: click.Context) -> None:
        seen.append(Settings.of(ctx))

    async def nothing() -> None:
        """Probe."""

    item = command("probe", lists=True, mutates=True, waits=True)(nothing)
    item.callback = probe
    farmctl.add_command(item)
    try:
        assert farmctl.main(arguments, standalone_mode=False) in {None, 0}
    finally:
        del farmctl.commands["probe"]
    return seen[0]


def test_shared_options_work_before_and_after_the_command_and_the_last_wins() -> None:
    assert settings_of(["-o", "json", "probe"]).output == "json"
    assert settings_of(["probe", "-o", "json"]).output == "json"
    assert settings_of(["-o", "json", "probe", "-o", "name"]).output == "name"
    assert settings_of(["probe"]) == Settings()
    given = settings_of(["-q", "probe", "--no-wait", "--timeout", "2m", "-y", "--reason", "why", "--dry-run"])
    assert given == Settings(
        quiet=True, wait=False, given_timeout=120.0, yes=True, reason="why", dry_run=True
    )


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARMCTL_ADDR", "from-env:1")
    assert settings_of(["probe"]).http_addr == "from-env:1"
    assert settings_of(["--http-addr", "before:1", "probe"]).http_addr == "before:1"
    assert settings_of(["probe", "--http-addr", "after:1"]).http_addr == "after:1"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("500ms", 0.5), ("1h30m", 5400), ("2h", 7200), ("1d", 86400), ("0", 0)],
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1w", "s", "1 h", "nan", "inf", "1e3"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a time"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_FARMCTL_COMPLETE" in capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("farmctl ")


def every_error(root: type[Exception]) -> list[type[Exception]]:
    below = [error for kind in root.__subclasses__() for error in every_error(kind)]
    return [root, *below]


CODES = {
    errors.InputInvalid: 2,
    errors.Ambiguous: 2,
    ours.Unconfirmed: 2,
    errors.NotFound: 4,
    errors.Conflict: 5,
    errors.Locked: 5,
    errors.TransactionRejected: 5,
    errors.AccessDenied: 6,
    errors.StoreUnavailable: 7,
    errors.NoLeader: 7,
    errors.Throttled: 7,
    errors.UnexpectedAnswer: 7,
    errors.RecordInvalid: 7,
    errors.OutcomeUnknown: 7,
    ours.WaitTimeout: 8,
    ours.Declined: 10,
}


@pytest.mark.parametrize(
    ("kind", "code"), CODES.items(), ids=lambda value: getattr(value, "__name__", str(value))
)
def test_errors_have_the_exit_codes_of_the_guide(kind: type[Exception], code: int) -> None:
    error = kind(()) if kind is errors.TransactionRejected else kind("x")
    assert exit_code(error) == code


def test_every_error_of_ours_has_a_code_and_nothing_else_has() -> None:
    for root in (errors.StoreError, ours.FarmdError, SchedulerError):
        for kind in every_error(root):
            assert exit_code(kind.__new__(kind)) is not None, kind
    assert exit_code(RuntimeError("bug")) is None


def test_an_errors_own_hint_wins() -> None:
    assert hint(errors.NoLeader("x", hint="mine")) == "mine"
    assert "leader" in hint(errors.NoLeader("x"))
    assert hint(ours.WaitTimeout("x", hint="wait more")) == "wait more"


def test_an_error_says_no_control_characters_of_others_to_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    told = ours.EndedOtherwise("job/a failed: \x1b[2J\nno", hint="ask \x1b[31mada")
    assert report(told, verbose=False) == 9
    assert capsys.readouterr().err == "farmctl: job/a failed:  [2J no\nhint: ask  [31mada\n"
