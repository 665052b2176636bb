"""Files of jobs: what people write, what is filled in, and one line for each mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farmd.commands.mutation import commit
from farmd.jobs.commands import FILE, JOB
from store.errors import Conflict, InputInvalid
from store.jobs import Job
from store.manifests import canonical, digest
from tests.people import person

POD = "pod: {id: bert, command: [/bin/true]}"
WORKER = f"{{name: worker, {POD}}}"
CHIEF = "{name: chief, replicas: 0, pod: {id: bert, command: [/bin/true]}}"


def job(text: str, **given: str) -> Job:
    (spec,) = replace(FILE, given=given).parse_all((text, "bert.yaml"))
    return FILE.build(spec, "0a")


def one(more: str = "", **fields: str) -> str:
    """A file of one type; ``more`` are further fields of it, ``fields`` those of the job."""
    lines = [f"{name}: {value}" for name, value in ({"name": "bert"} | fields).items()]
    return "\n".join([*lines, f"types: [{{name: worker, {POD}{', ' if more else ''}{more}}}]"])


def pod(fields: str, kind: str = "", **job: str) -> str:
    """A file whose pod has these fields, and whose type those."""
    text = one(kind, **job)
    return text.replace("command: [/bin/true]", f"command: [/bin/true], {fields}")


def test_a_whole_file_says_what_it_said() -> None:
    text = """
name: bert
types:
  - name: chief
    restart: never
    node_selector: zone=a
    pod_labels: {app: bert}
    pod: {id: bert, command: [python, train.py], ports: {job: {}}, env: {RANK: "${FARMD_RANK}"}}
  - {name: worker, replicas: 7, restart: exit-code, pod: {id: bert, command: [python, train.py]}}
gang: true
peers: true
success: {operator: any, types: [chief]}
rules: [{action: fail-job, exit_codes: [2, -9], reasons: [oom], types: [worker]}]
backoff_limit: 3
active_deadline: 2h
ttl: null
clean: all
restart_scope: job
on_lost: wait
gang_timeout: 90
labels: {team: ml}
"""
    (spec,) = FILE.parse_all((text, "bert.yaml"))
    record = FILE.build(spec, "0a")
    assert (record.size, record.active_deadline, record.ttl) == (8, 7200.0, None)
    assert [each.manifest for each in record.types] == [digest(canonical(pod)) for pod in spec.pods]
    written = FILE.document(record, {digest(canonical(pod)): pod for pod in spec.pods})
    assert FILE.build(FILE.parse(written, "again"), "0a") == record


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ("restart: on-failure", "on-failure"),
        ("restart: never", "never"),
        ("restart: exit-code", "never"),
    ],
)
def test_agents_start_members_again_only_where_nothing_else_decides(fields: str, policy: str) -> None:
    (spec,) = FILE.parse_all((one(fields), "bert.yaml"))
    assert [each.restart.policy for each in spec.pods] == [policy]
    (whole,) = FILE.parse_all((one(fields, restart_scope="job"), "bert.yaml"))
    assert [each.restart.policy for each in whole.pods] == ["never"]


def test_a_file_that_is_shown_names_no_empty_part() -> None:
    (spec,) = FILE.parse_all((one(), "bert.yaml"))
    (kept,) = spec.pods
    written = FILE.document(FILE.build(spec, "0a"), {digest(canonical(kept)): kept})
    assert "success" not in written
    assert written["types"][0]["pod"] == {"id": "bert", "command": ["/bin/true"]}


def test_parameters_are_filled_in_before_anything_is_read() -> None:
    text = (
        'name: "b-${param.day}"\nparameters: {day: null, n: 2, model: base}\n'
        'types: [{name: worker, replicas: "${param.n}", pod: {id: b, command: [x, "${param.n}"],'
        ' env: {N: "${param.n}", M: "m-${param.model}"}}}]'
    )
    (spec,) = replace(FILE, given={"day": "monday", "n": "5"}).parse_all((text, "b.yaml"))
    (kind,) = spec.types
    assert (spec.name, kind.replicas) == ("b-monday", 5)
    assert (kind.pod.command, kind.pod.env) == (["x", "5"], {"N": "5", "M": "m-base"})


def test_another_name_makes_another_job_of_one_file() -> None:
    (spec,) = FILE.parse_all((one(), "bert.yaml"))
    assert FILE.build(FILE.renamed(spec, "bert-2026-11-22"), "0a").name == "bert-2026-11-22"
    with pytest.raises(InputInvalid, match="--name: name: found 41 characters, expected at most 40"):
        FILE.renamed(spec, "b" * 41)


BROKEN = [
    ("", "bert.yaml: found no document, expected at least one"),
    ("- a", "document: found a list, expected a mapping"),
    ("name: bert", "bert.yaml: types: missing"),
    (f"types: [{WORKER}]", "bert.yaml: name: missing"),
    ("name: bert\ntypes: []", "types: found 0, expected 1 to 16 types"),
    (f"name: Bert\ntypes: [{WORKER}]", "name: found 'Bert', expected 1 to 63 of a-z, 0-9 and '-'"),
    (f"name: {'b' * 41}\ntypes: [{WORKER}]", "name: found 41 characters, expected at most 40"),
    ("name: bert\ntypes: [{name: worker}]", "types[0].pod: missing"),
    (one().replace("worker", "w" * 31), "types[0].name: found 31 characters, expected at most 16"),
    (one().replace("worker", "Worker"), "types[0].name: found 'Worker', expected 1 to 63 of a-z"),
    (
        f"name: bert\ntypes: [{WORKER}, {WORKER}]",
        "types[1].name: found 'worker' again, expected each name once",
    ),
    (one("replicas: -1"), "types[0].replicas: found -1, expected 0 to 5000"),
    (one("replicas: 5001"), "types[0].replicas: found 5001, expected 0 to 5000"),
    (one("replicas: 100001, parallelism: 5"), "types[0].replicas: found 100001, expected 0 to 100000"),
    (one("replicas: many"), "types[0].replicas: found 'many', expected a whole number"),
    (one("parallelism: -2"), "types[0].parallelism: found -2, expected 0 to 5000"),
    (one("parallelism: 2", gang="true"), "types[0].parallelism: found 2, expected 0: all members of a gang"),
    (one("restart: always"), "types[0].restart: found 'always', expected"),
    (one("node_selector: '='"), "types[0].node_selector:"),
    (
        one("pod_labels: {job_id: x}"),
        "types[0].pod_labels: found 'job_id', expected labels other than farmd's own",
    ),
    (pod("restart: {policy: never}"), "types[0].pod.restart.policy: found 'never', expected none"),
    (pod('env: {RANK: "${FARMD_RANG}"}'), "types[0].pod.env"),
    (pod('env: {P: "${FARMD_PEERS_FILE}"}'), "types[0].pod.env"),
    (
        pod("env: {FARMD_RANK: '0'}"),
        "types[0].pod.env: found 'FARMD_RANK', expected a name that does not begin",
    ),
    (pod("resources: {cpu: -1}"), "types[0].pod.resources.cpu"),
    (one(peers="true"), "peers: found true without a gang, expected gang: true beside it"),
    (
        one(success="{types: [chief]}"),
        "success.types: found 'chief', expected one of the job's types: worker",
    ),
    (
        f"name: bert\ntypes: [{WORKER}, {CHIEF}]\nsuccess: {{types: [chief]}}",
        "success.types: found chief with 0 replicas, expected a type that has slots",
    ),
    (
        one("replicas: 0", gang="true"),
        "gang: found true without a slot, expected replicas of a type above 0",
    ),
    (one(success="{operator: most}"), "success.operator: found 'most', expected"),
    (one(rules="[{action: retry}]"), "rules[0].action: found 'retry', expected"),
    (
        one(rules="[{action: ignore, exit_codes: [0]}]"),
        "rules[0].exit_codes: found 0, expected codes of failures",
    ),
    (
        one(rules="[{action: ignore, exit_codes: [300]}]"),
        "rules[0].exit_codes: found 300, expected -64 to 255",
    ),
    (
        one(rules="[{action: ignore, reasons: [moon]}]"),
        "rules[0].reasons: found 'moon', expected 'lost' or 'oom'",
    ),
    (one(rules="[" + ", ".join(["{action: ignore}"] * 9) + "]"), "rules: found 9, expected 0 to 8 rules"),
    (one(backoff_limit="-1"), "backoff_limit: found -1, expected 0 to 100000"),
    (one(active_deadline="soon"), "active_deadline: found 'soon', expected a time"),
    (one(ttl="-5"), "ttl: found -5"),
    (one(clean="some"), "clean: found 'some', expected"),
    (one(gang_timeout="0"), "gang_timeout: found 0, expected 1 to 2678400 seconds"),
    (one(parallel="2"), "parallel: unknown"),
    (one(parameters="[a]"), "parameters: found a list, expected names with their defaults"),
    (one(parameters="{a: {}}"), "parameters.a: found an empty mapping, expected text, a number, or null"),
    (one(parameters="{a: null}"), "parameters.a: found no value, expected --param a=VALUE"),
    (one(labels='{a: "${param.b}"}'), "labels.a: found '${param.b}', expected a declared parameter: none"),
]


@pytest.mark.parametrize(("text", "line"), BROKEN)
def test_a_broken_file_is_one_line_that_names_the_field(text: str, line: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        job(text)
    message = str(caught.value)
    assert line in message
    assert "bert.yaml" in message
    assert "\n" not in message


def test_a_value_for_no_parameter_of_the_file_is_refused() -> None:
    with pytest.raises(
        InputInvalid, match="--param x: found no such parameter, expected one of the file's: a"
    ):
        job(one(parameters="{a: 1}"), x="2")


async def test_a_job_that_differs_is_a_conflict_that_names_the_fields() -> None:
    async with person() as call:
        (spec,) = FILE.parse_all((one("replicas: 2"), "bert.yaml"))
        await commit(call, await JOB.create(call, spec))
        assert not (await JOB.create(call, spec)).needed
        (other,) = FILE.parse_all((pod("args: [x]", "replicas: 3", ttl="5"), "bert.yaml"))
        with pytest.raises(Conflict) as caught:
            await JOB.create(call, other)
        assert caught.value.fields["differs"] == ["types[0].pod", "types[0].replicas", "ttl"]
        assert "types[0].replicas (2 -> 3), ttl (86400.0 -> 5.0)" in str(caught.value)
        await commit(call, await JOB.delete(call, "bert", cascade=True))
        with pytest.raises(Conflict, match="job 'bert' is being deleted"):
            await JOB.create(call, spec)
