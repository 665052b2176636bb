"""What farmctl answers to mistakes, line by line: the key, the value found, what was expected; exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from store import codec
from store.manifest_check import LIMITS
from store.pods import Pod
from store.status import Status
from tests.farmctl import Farmctl, embedded, in_cluster, put
from tests.people import hello


@pytest.fixture(scope="module")
def farmctl() -> Iterator[Farmctl]:
    """A registered cluster with one node and no farm."""
    with embedded() as address:
        yield in_cluster(address, "web1")


def written(folder: Path, **files: str) -> list[str]:
    """The files as arguments."""
    arguments = []
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.write_text(text)
        arguments += ["-f", str(path)]
    return arguments


def named(name: str, **fields: object) -> str:
    return yaml.safe_dump(hello(name=name, **fields))


def test_several_files_are_taken_in_order_and_checked_before_any_is_written(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    files = written(tmp_path, b=named("several-b"), a=named("several-a"))
    made = farmctl.ok("rc", "create", *files, "-f", "-", "-o", "name", stdin=named("several-c"))
    assert made.out.splitlines() == ["rc/several-b", "rc/several-a", "rc/several-c"]
    changed = written(tmp_path, b=named("several-b", replicas=1), a=named("several-a", replicas=2))
    farmctl.ok("rc", "update", "--now", "-y", *changed)
    listed = farmctl.ok("rc", "list", "-o", "json").json["items"]
    counts = {item["name"]: item["replicas_desired"] for item in listed}
    assert (counts["several-b"], counts["several-a"], counts["several-c"]) == (1, 2, 3)

    files = written(tmp_path, d=named("several-d"), bad=named("several-e", replicas=-1))
    assert farmctl("rc", "create", *files).code == 2
    assert farmctl("rc", "get", "several-d").code == 4, "nothing is written"


def test_one_file_twice_and_one_name_in_two_files_are_refused(farmctl: Farmctl, tmp_path: Path) -> None:
    files = written(tmp_path, a=named("twice"))
    assert farmctl("rc", "create", *files, *files).err == (
        f"farmctl: -f: found '{tmp_path}/a.yaml' twice, expected each file once\n"
    )
    files = written(tmp_path, a=named("twice"), b=named("twice"))
    refused = farmctl("rc", "create", *files)
    assert refused.code == 2
    assert refused.err == (
        f"farmctl: {tmp_path}/b.yaml: name: found 'twice' again, expected each name once;"
        f" {tmp_path}/a.yaml has it, too\n"
    )
    assert farmctl("rc", "get", "twice").code == 4


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["rc", "list", "-l", "a=b", "-l", "c=d"], 2, "--selector is given 2 times, expected once."),
        (["pod", "list", "--node", "a", "--node", "b"], 2, "--node is given 2 times, expected once."),
        (["audit", "list", "-n", "1", "-n", "2"], 2, "--limit is given 2 times, expected once."),
        (
            ["audit", "list", "-n", "some"],
            2,
            "Invalid value for '-n' / '--limit': found 'some', expected a whole number from 1 to 100000",
        ),
        (["pod", "list", "--node", "nosuch"], 4, "node 'nosuch' does not exist"),
        (
            ["pod", "list", "--node", "no such"],
            2,
            "node: found 'no such', expected 1 to 128 of letters, digits, '.', '_' and '-', no '..'",
        ),
        (["audit", "list", "--kind", "nod"], 2, "--kind: found 'nod', did you mean 'node'?"),
        (
            ["failsafe", "clear", "rsc", "--evidence", "x", "--for", "1h", "--reason", "y"],
            2,
            "kind: found 'rsc', did you mean 'rcs'?",
        ),
        (
            ["failsafe", "clear", "rc", "--evidence", "x", "--for", "1h", "--reason", "y"],
            4,
            "failsafe 'rc' is not set",
        ),
        (["pod", "logs", "nosuch"], 4, "pod 'nosuch' does not exist"),
        (["pod", "logs", "nosuch/hello"], 4, "node 'nosuch' does not exist"),
        (
            ["pod", "logs", "hello", "--lines", "10001"],
            2,
            "Invalid value for '--lines' / '--tail': found 10001, expected a whole number from 0 to 10000",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line(farmctl: Farmctl, arguments: list[str], code: int, line: str) -> None:
    result = farmctl(*arguments)
    assert (result.code, result.out, result.err.splitlines()[0]) == (code, "", f"farmctl: {line}")


def test_an_explanation_says_first_that_the_owner_is_blocked_and_why(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=named("stuck"))
    ident = farmctl.ok("rc", "get", "stuck", "-o", "json").json["id"]
    assert "blocked" not in farmctl.ok("rc", "explain", "stuck").out
    put(farmctl, f"locks/rcs/{ident}", "farms/f1/n1")
    status = Status(state="blocked", reason="no place", desired=3, farm="f1")
    put(farmctl, f"status/rcs/{ident}", codec.encode(status).decode())
    assert farmctl.ok("rc", "explain", "stuck").out.splitlines()[0] == "stuck is blocked: no place"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"replicas: {'9' * 5000}", "line 1: found a number of 5000 digits, expected at most 100"),
        (f"name: a\nreplicas: 0x{'f' * 101}", "line 2: found a number of 103 digits, expected at most 100"),
        (named("a", max_unavailable=0), "max_unavailable: found 0, expected a whole number from 1 to 100000"),
        (
            named("a", max_unavailable="0%"),
            "max_unavailable: found '0%', expected a whole number or a share from 1% to 100%",
        ),
        (
            named("a", pod_ulimits={"nofiles": 5}),
            f"pod.ulimits: found 'nofiles', expected one of {', '.join(sorted(LIMITS))}",
        ),
        (named("a", pod_env={"DEBUG": True}), "pod.env.DEBUG: found true, expected text: put it in quotes"),
        (named("a", pod_command="sleep 9"), "pod.command: found 'sleep 9', expected a list"),
        (named("a", node_selector={"rack": "a"}), "node_selector: found a mapping, expected text"),
        ("&a [*a]", "line 1: found the alias *a, expected a value above it in the same document, marked &a"),
    ],
    ids=lambda text: text[:20],
)
def test_a_mistake_in_a_file_names_key_found_and_expected(farmctl: Farmctl, text: str, line: str) -> None:
    refused = farmctl("rc", "create", "-f", "-", stdin=text)
    assert (refused.code, refused.out, refused.err) == (2, "", f"farmctl: stdin: {line}\n")


def test_a_number_of_many_digits_in_json_is_refused_in_peoples_words(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"replicas": ' + "9" * 5000 + "}")
    refused = farmctl("rc", "create", "-f", str(file))
    assert (refused.code, refused.err) == (
        2,
        f"farmctl: {file}: found a number of 5000 digits, expected at most 100\n",
    )


@pytest.mark.parametrize("name", ["FARMD_STORE__PREFX", "FARMD_STORE_PREFIX"])
def test_a_variable_that_is_none_is_refused(
    farmctl: Farmctl, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    env = {**farmctl.env, name: "other/"}
    monkeypatch.setattr(Farmctl, "env", property(lambda _: env))
    refused = farmctl("rc", "list")
    assert (refused.code, refused.err) == (
        2,
        f"farmctl: {name}: unknown variable, did you mean 'FARMD_STORE__PREFIX'?\n",
    )


def test_of_an_option_for_all_commands_the_last_place_wins(farmctl: Farmctl) -> None:
    assert (
        farmctl.ok("-o", "yaml", "rc", "list", "-o", "json", "-o", "name").out
        == farmctl.ok("rc", "list", "-o", "name").out
    )


def test_waiting_for_a_disabled_controller_says_what_stands(farmctl: Farmctl) -> None:
    made = farmctl.ok("rc", "create", "-f", "-", "-o", "json", stdin=named("still", disabled=True)).json
    pod = codec.encode(Pod("0" * 64)).decode()
    put(farmctl, f"pods/{made['items'][0]['id']}/web1/still", pod)
    scaled = farmctl.ok("rc", "set-replicas", "still", "0", "-y", "--wait")
    assert scaled.err.splitlines() == [
        "rc/still: set-replicas: replicas 3 -> 0",
        "rc/still: 1 of 0 placed, 0 healthy, 1 outdated; disabled: farms leave its pods as they are until"
        " farmctl rc enable still",
    ]


def test_an_equal_name_with_other_fields_is_refused_in_the_words_of_files(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=named("differs", disabled=True))
    refused = farmctl("rc", "create", "-f", "-", stdin=named("differs", disabled=False))
    assert (refused.code, refused.err.splitlines()[0]) == (
        5,
        "farmctl: rc 'differs' exists and differs: disabled (true -> false)",
    )


def test_a_job_whose_run_does_not_decode_is_described_and_the_record_named(farmctl: Farmctl) -> None:
    file = "name: sum\ntypes: [{name: main, pod: {id: sum, command: [/bin/true]}}]"
    farmctl.ok("job", "run", "-f", "-", "--no-wait", stdin=file)
    ident = farmctl.ok("job", "get", "sum", "-o", "json").json["id"]
    put(farmctl, f"runs/{ident}", "{")
    told = farmctl.ok("job", "describe", "sum").out
    (line,) = [each for each in told.splitlines() if each.startswith("Attempt:")]
    assert f"unknown: {farmctl.prefix}runs/{ident}: " in line
    assert line.endswith("farmctl doctor shows how to repair it")
    assert "History (newest first)" in told
    document = farmctl.ok("job", "describe", "sum", "-o", "json").json
    assert (document["run"], document["broken"]) == (None, [line.partition("unknown: ")[2]])
    found = farmctl("doctor", "-o", "json").json["items"]
    (finding,) = [each for each in found if each["code"] == "record-invalid"]
    assert (
        f"farmctl doctor --fix runs/{ident} restarts its job: completed slots run again" in (finding["fix"])
    )


@pytest.mark.parametrize("name", ["..", ".", "a//b", "../a", ""])
@pytest.mark.parametrize(
    "words", ["rc describe", "app describe", "app explain", "node describe", "job get", "rollout status"]
)
def test_a_name_that_is_no_part_of_a_path_is_refused_before_consul_is_asked(
    farmctl: Farmctl, words: str, name: str
) -> None:
    refused = farmctl(*words.split(), name)
    assert (refused.code, refused.out) == (2, "")
    said = refused.err.splitlines()[0].replace("NAME|REF", "NAME")
    assert f"'NAME': found {name!r}, expected a name without empty parts" in said


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("rollout create --rc .. --to web", "--rc"),
        ("rollout create --rc web --to a//b", "--to"),
        ("job logs ..", "[[KIND/]NAMESPACE/]JOB[/TYPE/INDEX]"),
        ("job logs train/worker/", "[[KIND/]NAMESPACE/]JOB[/TYPE/INDEX]"),
        ("service create web --port http ..", "[RC]..."),
    ],
)
def test_a_name_in_an_option_that_is_no_part_of_a_path_is_refused_before_consul_is_asked(
    farmctl: Farmctl, words: str, where: str
) -> None:
    refused = farmctl(*words.split())
    assert (refused.code, refused.out) == (2, "")
    assert f"'{where}': found " in refused.err
    assert "expected a name without empty parts" in refused.err


def test_of_several_names_the_one_that_is_none_is_refused(farmctl: Farmctl) -> None:
    refused = farmctl("node", "cordon", "web1", "..")
    assert (refused.code, "'NAMES...': found '..', expected a name" in refused.err) == (2, True)


def test_a_name_that_does_not_exist_is_answered_with_similar_ones(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=named("web-front", replicas=0))
    farmctl.ok("rc", "create", "-f", "-", stdin=named("db", replicas=0))
    for words in (
        ["rc", "get", "web-fornt"],
        ["rc", "scale", "web-fornt", "1"],
        ["rc", "delete", "web-fornt"],
    ):
        found = farmctl(*words)
        assert (found.code, found.err.splitlines()[-1]) == (4, "hint: did you mean rc/web-front?")
    assert "did you mean" not in farmctl("rc", "get", "cache").err
    farmctl.ok("node", "label", "web1", "rack=a")
    assert farmctl("node", "describe", "web11").err.endswith("hint: did you mean node/web1?\n")
