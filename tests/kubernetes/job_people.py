"""People who ask ``farmctl job`` of jobs in Kubernetes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from tests.farmctl import Farmctl, Result
from tests.kubernetes.farmjobs import RUNNING, Jobs, template

Run = Callable[..., Awaitable[Result]]


def document(name: str, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    """A small FarmJob."""
    types = {"Worker": {"replicas": replicas, "restartPolicy": "ExitCode", "template": template()}}
    body = {"apiVersion": "farmd.io/v1", "kind": "FarmJob", "metadata": {"name": name}}
    return body | {"spec": {"replicaSpecs": types} | spec}


def person(jobs: Jobs, folder: Path, user: str = "admin", **variables: str) -> Run:
    """farmctl with the cluster's kubeconfig, whose context names the test's namespace."""
    config = json.loads(jobs.server.kubeconfig(user))
    config["contexts"][0]["context"]["namespace"] = jobs.namespace
    path = folder / f"kubeconfig-{user}"
    path.write_text(json.dumps(config))
    run = Farmctl(jobs.consul, jobs.prefix, variables={"KUBECONFIG": str(path), **variables})

    async def ran(*words: str, stdin: Any = "") -> Result:
        text = stdin if isinstance(stdin, str) else yaml.safe_dump_all(stdin)
        return await asyncio.to_thread(run, *words, stdin=text)

    return ran


async def running(jobs: Jobs, farmctl: Run, name: str, replicas: int = 1, **spec: Any) -> None:
    """Run a job, and wait until its pods run."""
    done = await farmctl("job", "run", "-f", "-", stdin=[document(name, replicas, **spec)])
    assert done.code == 0, done
    own = [f"{name}-worker-{index}" for index in range(replicas)]
    await jobs.until("its pods", lambda: set(own) <= set(jobs.pods()))
    for pod in own:
        jobs.play(pod, RUNNING)
    await jobs.until("a job that runs", lambda: "Running" in jobs.states(name))
