"""What users of kubectl, Nomad, Docker and systemctl type works, or names the command that does it."""

from __future__ import annotations

import re

import click
import pytest

from farmd.cli import synonyms
from farmd.cli.main import farmctl

WORK = {
    "get all": "all",
    "get rc": "rc list",
    "get rcs": "rc list",
    "get rc web": "rc get web",
    "get rc/web": "rc get web",
    "get pods": "pod list",
    "get po": "pod list",
    "get nodes": "node list",
    "get svc": "service list",
    "get ds": "daemonset list",
    "get rc -o yaml": "rc list -o yaml",
    "describe rc web": "rc describe web",
    "describe node n1": "node describe n1",
    "describe n1/web": "pod describe n1/web",
    "delete rc/web --cascade": "rc delete web --cascade",
    "logs rc/web -f": "rc logs web -f",
    "logs n1/web": "pod logs n1/web",
    "logs job/sums": "job logs sums",
    "scale rc/web 5": "rc set-replicas web 5",
    "scale rc web --replicas=5": "rc set-replicas web 5",
    "edit rc web": "rc edit web",
    "restart rc/web": "rc restart web",
    "status rc/web": "rc describe web",
    "inspect n1/web": "pod describe n1/web",
    "explain rc web": "rc explain web",
    "stop job/sums": "job stop sums",
    "history rc/web": "rc history web",
    "drain n1": "node drain n1",
    "cordon node/n1": "node cordon n1",
    "uncordon n1": "node uncordon n1",
    "taint n1 a=b": "node taint n1 a=b",
    "ps": "pod list",
    "port-forward n1/web 8080:80": "pod port-forward n1/web 8080:80",
    "cp web:a b": "pod cp web:a b",
    "exec -it n1/web -- sh": "pod exec -it n1/web -- sh",
    "ls": "all",
    "stats": "top",
    "up": "deploy",
    "members": "farm list",
    "get events": "events",
    "get secrets": "secret list",
    "help rc scale": "rc set-replicas --help",
    "rc help scale": "rc set-replicas --help",
    "help ls": "all --help",
    "pods list": "pod list",
    "nodes ls": "node list",
    "rc ls": "rc list",
    "rc ps web": "rc pods web",
    "rc rm web": "rc delete web",
    "rc status web": "rc describe web",
    "rc scale web 5": "rc scale web 5",
    "rc logs web": "rc logs web",
    "rc history web": "rc history web",
    "rollout undo web": "rollout revert web",
    "rollout rollback web": "rollout revert web",
    "rollout status web": "rollout status web",
    "job status sums": "job describe sums",
    "job cancel sums": "job stop sums",
    "alloc logs n1/web": "pod logs n1/web",
    "node status n1": "node describe n1",
    "service inspect web": "service describe web",
}
POINTED = (
    *synonyms.POINTERS,
    "rc stop web",
    "rc start web",
    "rc exec web",
    "pod delete n1/web",
    "node eligibility n1",
    "rc events web",
    "node rm n1",
    "node delete n1",
    "node stop n1",
)


def resolved(line: str) -> str:
    """The command of a line, and the words that it gets."""
    args, path = line.split(), list[str]()
    command: click.Command = farmctl
    context = click.Context(farmctl, info_name="farmctl")
    while isinstance(command, click.Group):
        _, found, args = command.resolve_command(context, args)
        assert found is not None
        command = found
        context = click.Context(command, parent=context, info_name=command.name)
        path.append(str(command.name))
    return " ".join([*path, *args])


@pytest.mark.parametrize(("line", "meant"), WORK.items())
def test_words_of_other_tools_work(line: str, meant: str) -> None:
    same = {"rc scale web 5": "rc set-replicas web 5"}  # one command under two names
    assert resolved(line) == same.get(meant, meant)


@pytest.mark.parametrize("line", POINTED)
def test_other_words_name_a_command_that_there_is(line: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        resolved(line)
    word = line.split()[1] if " " in line else line
    told = str(refused.value.message)
    assert told.startswith(f"No such command {word!r}: ")
    for named in re.findall(r"farmctl ((?:[a-z-]+ ?)+)", told):
        path = [each for each in named.split() if each.islower()]
        command: click.Command | None = farmctl
        for each in path[:2]:
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), each)
        assert command is not None, named
