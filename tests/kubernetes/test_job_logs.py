"""``farmctl job logs`` of jobs in Kubernetes: through the API server, from a node that a test plays."""

from __future__ import annotations

import pytest

from farmd.kubernetes.objects import PODS
from tests.kubernetes.farmjobs import Jobs, failed
from tests.kubernetes.job_people import Run, document, running
from tests.kubernetes.log_node import node

pytestmark = pytest.mark.xdist_group("kubernetes")


def bind(jobs: Jobs, pod: str, to: str) -> None:
    """Put a pod on a node, as the scheduler does."""
    target = {"apiVersion": "v1", "kind": "Node", "name": to}
    jobs.server.ask(
        "POST", PODS.path(jobs.namespace, pod, "binding"), {"metadata": {"name": pod}, "target": target}
    )


async def test_the_log_of_a_slot_is_that_of_its_pod(jobs: Jobs, farmctl: Run) -> None:
    await running(jobs, farmctl, "bert", 2)
    name = f"{jobs.namespace}/bert"
    logs = {"bert-worker-0/main": "zero\n", "bert-worker-1/main": "one\n\nmore\n"}
    with node(jobs.server, f"node-{jobs.namespace}", logs) as asked:
        for pod in jobs.pods():
            bind(jobs, pod, f"node-{jobs.namespace}")
        one = await farmctl(
            "job", "logs", f"job/{name}/worker/1", "--tail", "7", "--since", "5m", "--timestamps"
        )
        assert (one.code, one.out) == (0, "one\n\nmore\n")
        wanted = {"tailLines": "7", "sinceSeconds": "300", "timestamps": "true"}
        assert asked == [("bert-worker-1/main", wanted)]
        followed = await farmctl("job", "logs", "-n", jobs.namespace, "bert/Worker/0", "-f", "--attempt", "0")
        assert followed.out == "zero\n"
        assert asked[-1][1]["follow"] == "true"
        every = await farmctl("job", "logs", name)
        assert every.out == "Worker/0: zero\nWorker/1: one\nWorker/1: \nWorker/1: more\n"


async def test_a_log_that_nobody_has_is_one_clear_line(jobs: Jobs, farmctl: Run) -> None:
    await running(jobs, farmctl, "bert", 2)
    name = f"{jobs.namespace}/bert"
    await farmctl("job", "run", "-f", "-", stdin=[document("late")])
    await jobs.until("a pod that is nowhere", lambda: "late-worker-0" in jobs.pods())
    nowhere = await farmctl("job", "logs", f"{jobs.namespace}/late/worker/0")
    assert nowhere.code == 4
    assert "pod late-worker-0 has not started yet" in nowhere.err
    other = await farmctl("job", "logs", f"{name}/chief/0")
    assert (other.code, other.out) == (2, "")
    assert "slot: found 'chief', expected a type of the job: Worker" in other.err
    beyond = await farmctl("job", "logs", f"{name}/worker/7")
    assert beyond.code == 4
    assert f"job '{name}': Worker/7 has no pod" in beyond.err
    first = jobs.pods()["bert-worker-1"]["metadata"]["uid"]
    jobs.play("bert-worker-1", failed(137))

    def replaced() -> bool:
        found = jobs.pods().get("bert-worker-1")
        return found is not None and found["metadata"]["uid"] != first

    await jobs.until("a second attempt", replaced)
    gone = await farmctl("job", "logs", f"{name}/worker/1", "--attempt", "0")
    assert gone.code == 4
    assert "the pod of attempt 0 of Worker/1 is gone, and its log with it; attempt 1 is there" in gone.err
    every = await farmctl("job", "logs", name)
    assert every.code == 7
    assert "Worker/1: pod bert-worker-1 has not started yet" in every.err
    assert "the logs of 1 of 2 pods could not be read" in every.err
