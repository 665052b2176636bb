"""``farmctl job`` for jobs in Kubernetes, on a real API server with a farm; the test plays the kubelet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from farmd.commands.mutation import Call
from farmd.kubernetes.client import Objects
from farmd.kubernetes.jobs.commands import create, parse, prepare
from farmd.kubernetes.jobs.view import Jobs as JobsOfAPerson
from farmd.kubernetes.objects import PODS, SERVICES
from farmd.runtime.clock import SystemClock, SystemIds
from tests.farmctl import Farmctl
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, Jobs, failed
from tests.kubernetes.job_people import Run, document, person, running

pytestmark = pytest.mark.xdist_group("kubernetes")


async def test_a_file_becomes_a_job_once_and_another_one_is_a_conflict(jobs: Jobs, farmctl: Run) -> None:
    first = await farmctl("job", "run", "-f", "-", stdin=[document("bert", 2)])
    assert (first.code, first.out) == (0, f"job/{jobs.namespace}/bert created\n")
    uid = jobs.job("bert")["metadata"]["uid"]
    again = await farmctl("job", "run", "-f", "-", stdin=[document("bert", 2)])
    assert (again.code, again.out) == (0, f"job/{jobs.namespace}/bert unchanged\n")
    other = await farmctl("job", "run", "-f", "-", stdin=[document("bert", 3)])
    assert other.code == 5
    assert "exists and differs: spec.replicaSpecs.Worker.replicas" in other.err
    less = document("bert", 2)
    del less["spec"]["replicaSpecs"]["Worker"]["restartPolicy"]
    assert (
        "spec.replicaSpecs.Worker.restartPolicy" in (await farmctl("job", "run", "-f", "-", stdin=[less])).err
    )
    assert jobs.job("bert")["metadata"]["uid"] == uid
    audit = await farmctl(
        "audit", "list", "--item", f"{jobs.namespace}/bert", "--action", "job.create", "-o", "json"
    )
    assert [each["after"] for each in audit.json["items"]] == [{"kind": "FarmJob", "slots": 2}]


async def test_a_job_whose_status_changes_while_it_is_compared_is_the_same_job(
    jobs: Jobs, farmctl: Run, connect, monkeypatch
) -> None:
    assert (await farmctl("job", "run", "-f", "-", stdin=[document("bert")])).code == 0
    replaced, changed = Objects.replaced, []

    async def late(self: Any, *words: Any) -> Any:
        if not changed:
            changed.append(True)
            jobs.server.patch(JOBS.path(jobs.namespace, "bert"), {"metadata": {"annotations": {"a": "b"}}})
        return await replaced(self, *words)

    monkeypatch.setattr(Objects, "replaced", late)
    parsed = parse(document("bert"), "bert.yaml", {}, jobs.namespace)
    async with connect(jobs.server) as transport:
        found = await prepare(None, JobsOfAPerson(transport), parsed)
    assert changed
    assert not found.needed


@pytest.mark.parametrize("replicas", [1, 2])
async def test_of_two_people_who_run_one_name_at_once_one_wins(jobs: Jobs, connect, replicas: int) -> None:
    """The second one has nothing to do where the jobs are equal, and a conflict where they are not."""
    files = [parse(document("bert", each), "bert.yaml", {}, jobs.namespace) for each in (1, replicas)]
    call = Call(jobs.client, jobs.keys, SystemClock(), SystemIds(), "user/ada@host")
    async with connect(jobs.server) as transport:
        people = JobsOfAPerson(transport)
        wanted = [await prepare(call, people, each) for each in files]
        assert all(each.needed for each in wanted)
        both = (create(call, people, each, mutation) for each, mutation in zip(files, wanted, strict=True))
        ends = await asyncio.gather(*both, return_exceptions=True)
    lost = [each for each in ends if each is not None]
    assert len(lost) == replicas - 1, ends
    assert all("exists and differs: spec.replicaSpecs.Worker.replicas" in str(each) for each in lost)
    won = 1 if not lost or ends[0] is None else replicas
    await jobs.until("its pods", lambda: len(jobs.pods()) == won)
    assert jobs.job("bert")["spec"]["replicaSpecs"]["Worker"]["replicas"] == won


async def test_a_wait_ends_with_the_job_and_with_9_where_it_fails(jobs: Jobs, farmctl: Run) -> None:
    late = await farmctl("job", "run", "-f", "-", "--wait", "--timeout", "0", stdin=[document("bert")])
    assert late.code == 8
    assert "is not over after 0 s" in late.err
    waiting = asyncio.create_task(farmctl("job", "run", "-f", "-", "--wait", stdin=[document("bert")]))
    await jobs.until("a pod", lambda: "bert-worker-0" in jobs.pods())
    jobs.play("bert-worker-0", SUCCEEDED)
    done = await waiting
    assert done.code == 0
    assert f"job/{jobs.namespace}/bert: succeeded" in done.err
    waiting = asyncio.create_task(farmctl("job", "run", "-f", "-", "--wait", stdin=[document("bad")]))
    await jobs.until("a pod", lambda: "bad-worker-0" in jobs.pods())
    jobs.play("bad-worker-0", failed(2))
    lost = await waiting
    assert lost.code == 9
    assert "failed: " in lost.err
    assert "exit code 2" in lost.err


async def test_a_dry_run_is_judged_by_the_server_and_creates_nothing(jobs: Jobs, farmctl: Run) -> None:
    done = await farmctl("job", "run", "-f", "-", "--dry-run", stdin=[document("dry", 3)])
    assert done.code == 0
    assert f"job/{jobs.namespace}/dry: create: kind FarmJob, slots 3" in done.out
    assert "the API server accepts it" in done.out
    assert jobs.server.ask("GET", JOBS.path(jobs.namespace))["items"] == []


async def test_nothing_is_created_where_the_server_refuses_one_of_several(jobs: Jobs, farmctl: Run) -> None:
    wrong = document("wrong", runPolicy={"schedulingPolicy": {}})
    wrong["metadata"]["labels"] = {"team": "not a label"}
    done = await farmctl("job", "run", "-f", "-", stdin=[document("good"), wrong])
    assert done.code == 2
    assert done.err.startswith("farmctl: stdin (document 2): ")
    assert "metadata.labels" in done.err
    assert jobs.server.ask("GET", JOBS.path(jobs.namespace))["items"] == []


async def test_one_file_may_have_jobs_of_both_worlds(jobs: Jobs, farmctl: Run) -> None:
    own = {"name": "own", "types": [{"name": "worker", "pod": {"id": "own", "command": ["true"]}}]}
    done = await farmctl("job", "run", "-f", "-", stdin=[own, document("there")])
    assert done.code == 0, done
    listed = await farmctl("job", "list", "-o", "name")
    assert listed.out.split() == ["job/own", f"job/{jobs.namespace}/there"]
    assert (await farmctl("job", "list", "-o", "json")).json["items"][1]["resource"] == "farmjobs.farmd.io"
    assert "job/own" in (await farmctl("job", "list", "-A", "-o", "name")).out
    away = await farmctl("job", "list", "--kubeconfig", "/nonexistent")
    assert away.code == 2


async def test_parameters_and_another_name_are_filled_in_before_it_is_sent(jobs: Jobs, farmctl: Run) -> None:
    wanted = document("sized", replicas="${param.count}")
    container = wanted["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "SIZE", "value": "${param.count}"}]
    wanted["parameters"] = {"count": 1}
    words = ("job", "run", "-f", "-", "--param", "count=2", "--name", "sized-2")
    assert (await farmctl(*words, stdin=[wanted])).code == 0
    spec = jobs.job("sized-2")["spec"]["replicaSpecs"]["Worker"]
    assert spec["replicas"] == 2
    assert spec["template"]["spec"]["containers"][0]["env"] == [{"name": "SIZE", "value": "2"}]


async def test_a_job_is_stopped_resumed_and_deleted_after_its_members(jobs: Jobs, farmctl: Run) -> None:
    await running(jobs, farmctl, "bert", 2)
    name = f"job/{jobs.namespace}/bert"
    asked = await farmctl("job", "stop", name)
    assert asked.code == 2
    assert "there is no terminal to confirm it on" in asked.err
    stopped = await farmctl("job", "stop", name, "-y", "--wait", "--reason", "rest")
    assert stopped.code == 0, stopped
    assert not jobs.pods()
    assert (await farmctl("job", "stop", name, "-y")).out == f"{name} unchanged\n"
    # The same file is no other job because somebody stopped it.
    same = await farmctl("job", "run", "-f", "-", stdin=[document("bert", 2)])
    assert same.out == f"{name} unchanged\n"
    assert (await farmctl("job", "resume", "-n", jobs.namespace, "bert")).code == 0
    await jobs.until("pods again", lambda: len(jobs.pods()) == 2)
    late = await farmctl("job", "delete", name, "-y", "--timeout", "0")
    assert late.code == 8
    assert "deleting, 2 pods left" in late.err
    refused = await farmctl("job", "run", "-f", "-", stdin=[document("bert", 2)])
    assert refused.code == 5
    assert "is being deleted" in refused.err
    collect(jobs, "bert")
    await running(jobs, farmctl, "bert")
    waiting = asyncio.create_task(farmctl("job", "delete", name, "-y"))
    await jobs.until("a mark", lambda: "deletionTimestamp" in jobs.job("bert")["metadata"])
    collect(jobs, "bert")
    done = await waiting
    assert (done.code, done.out.split()[:2]) == (0, [name, "marked"])
    assert done.out.splitlines()[1].startswith(f"{name} deleted")
    assert jobs.server.ask("GET", JOBS.path(jobs.namespace))["items"] == []
    history = await farmctl("audit", "list", "--item", name, "-o", "json")
    actions = [each["action"] for each in history.json["items"] if each["actor"].startswith("user/")]
    twice = ["job.mark-deleted", "job.create"]
    assert actions == [*twice, "job.mark-deleted", "job.resume", "job.stop", "job.create"]


def collect(jobs: Jobs, name: str) -> None:
    """Do what Kubernetes' garbage collector does with a job whose members are to go first."""
    for resource in (PODS, SERVICES):
        for each in jobs.server.ask("GET", resource.path(jobs.namespace))["items"]:
            path = resource.path(jobs.namespace, each["metadata"]["name"])
            jobs.server.ask("DELETE", path, {"gracePeriodSeconds": 0})
    jobs.server.patch(JOBS.path(jobs.namespace, name), {"metadata": {"finalizers": None}})


async def test_people_see_a_job_with_its_pods_conditions_and_history(jobs: Jobs, farmctl: Run) -> None:
    await running(jobs, farmctl, "bert", 2)
    name = f"{jobs.namespace}/bert"
    told = (await farmctl("job", "describe", name)).out
    assert "0 of 2 done, 2 active" in told
    assert "Worker/1  bert-worker-1  0        running" in told
    assert "JobRunning" in told
    assert "job.create" in told
    shown = (await farmctl("job", "describe", name, "-o", "json")).json
    assert [each["phase"] for each in shown["pods"]] == ["running", "running"]
    assert (shown["state"], shown["owner"]) == ("running", "first")
    assert (await farmctl("job", "describe", name, "-o", "name")).out == f"job/{name}\n"
    assert "bert-worker-1" in (await farmctl("job", "pods", name)).out
    again = (await farmctl("job", "get", name, "--file")).out
    assert (await farmctl("job", "run", "-f", "-", stdin=again)).out == f"job/{name} unchanged\n"
    table = (await farmctl("job", "list", "-o", "wide")).out
    assert table.splitlines()[1].split()[:1] == [name]
    assert "first" in table


async def test_a_pod_that_is_killed_for_its_memory_is_tried_again_and_people_are_told_why(
    jobs: Jobs, farmctl: Run
) -> None:
    await running(jobs, farmctl, "bert", 2)
    first = jobs.pods()["bert-worker-1"]["metadata"]["uid"]
    jobs.play("bert-worker-1", failed(137, "OOMKilled"))
    await jobs.until(
        "a restart",
        lambda: jobs.pods().get("bert-worker-1", {"metadata": {"uid": first}})["metadata"]["uid"] != first,
    )
    assert jobs.running("first").metric("farmd_job_restarts_total", cause="oom") == 1
    told = await farmctl("job", "explain", f"{jobs.namespace}/bert")
    assert "Worker/1 tried again after it ended (oom), attempt 1" in told.out
    alone = await farmctl("job", "run", "-f", "-", stdin=[document("alone", runPolicy={"backoffLimit": 0})])
    assert alone.code == 0, alone
    await jobs.until("a pod", lambda: "alone-worker-0" in jobs.pods())
    jobs.play("alone-worker-0", failed(137, "OOMKilled"))
    await jobs.until("the end", lambda: "Failed" in jobs.states("alone"))
    seen = await farmctl("job", "pods", f"{jobs.namespace}/alone")
    assert "OOMKilled" in seen.out


async def test_explain_tells_what_keeps_members_from_their_work(jobs: Jobs, farmctl: Run) -> None:
    name = f"{jobs.namespace}/stuck"
    assert (await farmctl("job", "run", "-f", "-", stdin=[document("stuck")])).code == 0
    await jobs.until("a pod", lambda: "stuck-worker-0" in jobs.pods())
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
    jobs.play("stuck-worker-0", {"phase": "Pending", "conditions": [why]})
    told = (await farmctl("job", "explain", name)).out
    assert "Worker/0: starting: Unschedulable: 0/3 nodes fit" in told


async def test_what_is_not_there_or_not_allowed_has_its_exit_code(
    jobs: Jobs, farmctl: Run, tmp_path: Path
) -> None:
    gone = await farmctl("job", "describe", f"{jobs.namespace}/none")
    assert gone.code == 4
    assert f"job '{jobs.namespace}/none' does not exist" in gone.err
    elsewhere = await farmctl("job", "run", "-f", "-", "-n", "nowhere", stdin=[document("bert")])
    assert elsewhere.code == 4
    assert elsewhere.err.startswith('farmctl: stdin: namespaces "nowhere" not found')
    nobody = person(jobs, tmp_path, "nobody")
    for words in (("describe", f"{jobs.namespace}/none"), ("list", "-A"), ("run", "-f", "-")):
        denied = await nobody("job", *words, stdin=[document("bert")])
        assert denied.code == 6
        assert 'is forbidden: User "nobody" cannot ' in denied.err
    amounts = {"count/farmjobs.farmd.io": "0"}
    quota = {"metadata": {"name": "none"}, "spec": {"hard": amounts}}
    jobs.server.ask("POST", f"/api/v1/namespaces/{jobs.namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas/none/status"
    jobs.server.patch(path, {"status": {"hard": amounts, "used": amounts}})
    full = await farmctl("job", "run", "-f", "-", stdin=[document("bert")])
    assert full.code == 6
    assert "stdin: farmjobs.farmd.io" in full.err
    assert "exceeded quota: none" in full.err


COMPLETED = (
    (("describe", ""), ["own", "{ns}/bert"]),
    (("delete", "-y", "job/{ns}/b"), ["job/{ns}/bert"]),
    (("describe", "-n", "{ns}", "b"), ["bert"]),
    (("logs", "{ns}/"), ["{ns}/bert"]),
    (("describe", "--kubeconfig", "/nonexistent", ""), []),
)


async def test_names_of_both_worlds_are_completed(jobs: Jobs, farmctl: Run, tmp_path: Path) -> None:
    own = {"name": "own", "types": [{"name": "worker", "pod": {"id": "own", "command": ["true"]}}]}
    assert (await farmctl("job", "run", "-f", "-", stdin=[own, document("bert")])).code == 0
    for typed, expected in COMPLETED:
        words = [word.format(ns=jobs.namespace) for word in ("farmctl", "job", *typed)]
        line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        done = await person(jobs, tmp_path, _FARMCTL_COMPLETE="bash_complete", **line)()
        shown = [each.removeprefix("plain,") for each in done.out.split() if each.startswith("plain,")]
        assert [each for each in shown if not each.startswith("-")] == [
            each.format(ns=jobs.namespace) for each in expected
        ]


async def test_a_cluster_that_is_away_keeps_no_job_in_consul_from_being_listed(
    jobs: Jobs, tmp_path: Path
) -> None:
    own = {"name": "own", "types": [{"name": "worker", "pod": {"id": "own", "command": ["true"]}}]}
    (tmp_path / ".kube").mkdir()
    away = jobs.server.kubeconfig().replace(f":{jobs.server.port}", ":1")
    (tmp_path / ".kube" / "config").write_text(away)
    farmctl = person(jobs, tmp_path, HOME=str(tmp_path), KUBECONFIG="")
    assert (await farmctl("job", "run", "-f", "-", stdin=[own])).code == 0
    listed = await farmctl("job", "list", "-o", "name")
    assert (listed.code, listed.out) == (0, "job/own\n")
    assert "jobs in Kubernetes are not shown: https://127.0.0.1:1: cannot connect" in listed.err
    assert (await farmctl("job", "list", "-A")).code == 7
    (tmp_path / ".kube" / "config").unlink()
    quiet = await farmctl("job", "list", "-o", "name")
    assert (quiet.out, quiet.err) == ("job/own\n", "")


async def test_a_wait_that_is_interrupted_takes_nothing_back(
    jobs: Jobs, farmctl: Run, tmp_path: Path
) -> None:
    path = tmp_path / "bert.json"
    path.write_text(json.dumps(document("bert")))
    terminal = Farmctl(jobs.consul, jobs.prefix, variables={"KUBECONFIG": str(tmp_path / "kubeconfig-admin")})
    words = ("job", "run", "-f", str(path), "--wait")
    done = await asyncio.to_thread(terminal.on_terminal, *words, until="0 of 1 done")
    assert done.code == 130
    name = f"{jobs.namespace}/bert"
    assert f"job/{name}: continues without this wait; farmctl job describe {name}" in done.out
    assert (await farmctl("job", "list", "-o", "name")).out == f"job/{name}\n"
