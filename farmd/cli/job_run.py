"""``farmctl job run | stop | resume | delete``."""

from __future__ import annotations

from dataclasses import replace

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import FILES, converge, deleting, saying, specs_of
from farmd.cli.options import command
from farmd.commands.mutation import Mutation
from farmd.jobs import commands
from farmd.jobs.commands import JOB
from farmd.jobs.nodes.outlook import forecast
from farmd.jobs.spec import FILE, JobSpec
from store.errors import InputInvalid


@command("run", mutates=True, waits=True)
@FILES
@click.option("--param", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the file.")
@click.option("--name", help="Another name than the file's, such as report-$(date +%F).")
async def run(
    invocation: Invocation, paths: tuple[str, ...], given: tuple[str, ...], name: str | None
) -> None:
    """Run a job from a file; --wait waits for its end and exits with 9 if it fails.

    Running an equal one again changes nothing; another one under the same name is a conflict. So two timers
    that run the same file with --name of the day run it once.
    """
    noun = replace(JOB, file=replace(FILE, given=_parameters(given)))
    specs: list[JobSpec] = specs_of(noun, paths)
    if name is not None:
        if len(specs) > 1:
            raise InputInvalid(f"--name: found {len(specs)} jobs, expected one", field="name")
        specs = [FILE.renamed(specs[0], name)]
    prepared = [(await JOB.create(invocation.call, spec), spec) for spec in specs]
    by_id = {mutation.change.id: spec for mutation, spec in prepared}

    async def write(mutation: Mutation) -> None:
        await JOB.commit_create(invocation.call, mutation, by_id[mutation.change.id])

    mutations = [forecast(invocation.call, mutation, spec) for mutation, spec in prepared]
    await apply(invocation, mutations, write)
    await converge(invocation, JOB, mutations)


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


stop = saying(JOB, "stop", commands.stop)
resume = saying(JOB, "resume", commands.resume)
delete = deleting(JOB)
