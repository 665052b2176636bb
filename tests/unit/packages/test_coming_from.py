"""docs/coming-from.md: its sample is a controller, its other files are files of those systems."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import click
import pytest

from farmd.cli.main import farmctl
from farmd.commands.documents import parse
from farmd.replication.commands import RC

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/coming-from.md").read_text()


def test_the_sample_is_a_controller_that_farmctl_takes() -> None:
    (sample,) = re.findall(r"<!-- controller -->\n```yaml\n(.*?)```", TEXT, re.DOTALL)
    (spec,) = RC.file.parse_all((sample, "web.yaml"))
    assert (spec.name, spec.replicas, spec.pod.logs.to) == ("web", 3, ["journald"])
    ((_, variable),) = parse("env: {PASSWORD: {secret: web/db}}", "text")
    assert f"`env: {{PASSWORD: {{secret: {variable['env']['PASSWORD']['secret']}}}}}`" in TEXT


@pytest.mark.parametrize("section", ["Service", "program:web"])
def test_the_files_of_systemd_and_supervisor_are_such_files(section: str) -> None:
    found = [configparser.ConfigParser(interpolation=None) for _ in re.findall("```ini", TEXT)]
    for each, body in zip(found, re.findall(r"```ini\n(.*?)```", TEXT, re.DOTALL), strict=True):
        each.read_string(body)
    assert [each for each in found if each.has_section(section)]


def test_each_command_of_farmctl_is_one() -> None:
    named = re.findall(r"farmctl ([a-z]+)(?: ([a-z]+))?", TEXT)
    assert named
    for noun, verb in named:
        command = farmctl.get_command(click.Context(farmctl), noun)
        assert command is not None, noun
        if verb and isinstance(command, click.Group):
            assert command.get_command(click.Context(command), verb) is not None, (noun, verb)


@pytest.mark.parametrize("page", ["README.md", "docs/workloads.md"])
def test_people_find_it(page: str) -> None:
    assert "coming-from.md" in (ROOT / page).read_text()
