"""``farmctl job run | stop | resume | delete``."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import click

from farmd.cli.changes import apply
from farmd.cli.cluster import Place, beside, has_kind, namespace_options
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import FILES, converge, deleting, saying, texts_of
from farmd.cli.options import command
from farmd.commands import documents
from farmd.commands.mutation import Mutation
from farmd.commands.specs import unlike
from farmd.jobs import commands
from farmd.jobs.commands import FILE, JOB, JobSpec
from farmd.jobs.placing import forecast
from farmd.kinds import load
from store.errors import InputInvalid


@command("run", mutates=True, waits=True, signs=True)
@FILES
@click.option("--param", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the file.")
@click.option("--name", help="Another name than the file's, such as report-$(date +%F).")
@namespace_options
async def run(
    invocation: Invocation,
    paths: tuple[str, ...],
    given: tuple[str, ...],
    name: str | None,
    kubeconfig: str,
    context: str,
    namespace: str,
) -> None:
    """Run a job from a file; --wait waits for its end and exits with 9 if it fails.

    A document with a kind, such as FarmJob or PyTorchJob, goes to Kubernetes; any other to Consul. Running an
    equal one again changes nothing; another one under the same name is a conflict. So two timers that run
    the same file with --name of the day run it once.
    """
    place, values = Place(kubeconfig, context, namespace), _parameters(given)
    parsed = [each for text, source in texts_of(paths) for each in documents.parse(text, source)]
    if name is not None and len(parsed) > 1:
        raise InputInvalid(f"--name: found {len(parsed)} jobs, expected one", field="name")
    there = [(source, data) for source, data in parsed if has_kind(data)]
    specs = _specs([(source, data) for source, data in parsed if not has_kind(data)], values, name)
    if place.named and not there:
        raise InputInvalid(
            "--namespace, --context and --kubeconfig: found no job for Kubernetes in the files"
        )
    async with AsyncExitStack() as stack:
        runs: Any = None
        if there:
            prepared = load("farmd.cli.job_cluster:prepared")(invocation, place, there, values, name)
            runs = await stack.enter_async_context(prepared)
        created = [(await JOB.create(invocation.call, spec), spec) for spec in specs]
        by_id = {mutation.change.id: spec for mutation, spec in created}

        async def write(mutation: Mutation) -> None:
            if mutation.change.kind == JOB.kind:
                await JOB.commit_create(invocation.call, mutation, by_id[mutation.change.id])
            else:
                await runs.write(invocation, mutation)

        mutations = [forecast(mutation, spec) for mutation, spec in created]
        await apply(invocation, [*mutations, *(runs.mutations if runs is not None else ())], write)
        await converge(invocation, JOB, mutations)
        if runs is not None:
            await runs.wait(invocation)


def _specs(parsed: list[tuple[str, Any]], given: dict[str, str], name: str | None) -> list[JobSpec]:
    """The jobs for Consul."""
    file = replace(FILE, given=given)
    specs = unlike([(source, file.parse(data, source)) for source, data in parsed])
    return specs if name is None else [file.renamed(spec, name) for spec in specs]


def _parameters(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InputInvalid(f"--param: found {each!r}, expected NAME=VALUE", field="param")
        if name in found:
            raise InputInvalid(f"--param: found {name!r} twice, expected once", field="param")
        found[name] = value
    return found


_NAMES = "farmd.cli.job_cluster:names"
stop = beside(saying(JOB, "stop", commands.stop), "farmd.cli.job_cluster:stop", names=_NAMES)
resume = beside(saying(JOB, "resume", commands.resume), "farmd.cli.job_cluster:resume", names=_NAMES)
delete = beside(deleting(JOB), "farmd.cli.job_cluster:delete", argument="names", names=_NAMES)
