"""Each alert has a runbook of its name, and no runbook is left without its alert. The commands in runbooks,
and those in blocks of the other pages, exist.
"""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from farmd.__main__ import main as farmd
from farmd.cli.main import farmctl

ROOT = Path(__file__).resolve().parents[3]
RUNBOOKS = {path.stem: path.read_text() for path in sorted((ROOT / "docs/runbooks").glob("*.md"))}
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "monitoring/rules.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
PARTS = ["What it means", "What to look at first", "What to do", "When it is not this"]
SENTENCE = re.compile(r"[.!?](?= [A-Z`\[]|$)")
OURS = {"farmctl": farmctl, "farmd": farmd}
SYNOPSES = ROOT / "docs/cli.md"  # made from the commands themselves
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {SYNOPSES})]
# Programs of the machine and of Consul, which a runbook may name without more.
OTHERS = {"systemctl", "journalctl", "consul", "curl", "df"}


def commands(text: str) -> list[list[str]]:
    """What a runbook tells somebody to type: the lines of its block, and commands amid its text."""
    block = text.partition("```sh\n")[2].partition("```")[0]
    inline = re.findall(r"`((?:farmctl|farmd) [^`]+)`", text.replace("\n", " "))
    return [shlex.split(line) for line in [*block.splitlines(), *inline]]


def accepts(command: click.Command, words: list[str], context: click.Context | None = None) -> None:
    """Fail where click would refuse these words: an unknown command or option, or too few arguments."""
    context = click.Context(command, parent=context, info_name=command.name)
    if isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, words)
        assert found is not None, name
        accepts(found, rest, context)
        return
    values, over, _ = command.make_parser(context).parse_args(args=words)
    assert not over, f"{command.name} takes no {over}"
    for each in command.params:
        value = values.get(each.name or "")
        assert not each.required or not (value is None or each.value_is_missing(value)), (
            f"no {each.name}: {words}"
        )


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    assert RUNBOOKS.keys() == RULES.keys()
    for name, rule in RULES.items():
        assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.runbooks }}}}/{name}.md"
        assert f"](runbooks/{name}.md)" in (ROOT / "docs/monitoring.md").read_text()


@pytest.mark.parametrize("name", RUNBOOKS)
def test_each_has_the_form_of_a_runbook(name):
    text, rule = RUNBOOKS[name], RULES[name]
    after = f" after {rule['for']}" if "for" in rule else ""
    first = f"# {name}\n\n{rule['annotations']['summary']} Severity: {rule['labels']['severity']}{after}.\n"
    assert text.startswith(first)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == PARTS
    _, means, look, do, _ = parts = re.split(r"^## .+$", text, flags=re.MULTILINE)
    assert all(part.strip() for part in parts)
    assert len(SENTENCE.findall(" ".join(means.split()))) <= 2, "what fired and what it means: two sentences"
    assert re.findall(r"^- (Good|Bad): ", look, re.MULTILINE) == ["Good", "Bad"], "what its commands show"
    assert "\nThe alert " in do, "when the alert ends"


@pytest.mark.parametrize("name", RUNBOOKS)
def test_each_command_exists(name):
    typed = commands(RUNBOOKS[name])
    assert typed
    for program, *words in typed:
        if program in OURS:
            accepts(OURS[program], words)
        else:
            assert program in OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_in_the_blocks_of_a_page_exists(page: Path) -> None:
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in re.sub(r"\$\([^)]*\)", "X", block.replace("\\\n", " ")).splitlines():
            words = itertools.takewhile(lambda word: word not in {"|", ">", ">>", "&&", "&"}, _words(line))
            program, *rest = [*words, ""]
            if program in OURS:
                accepts(OURS[program], rest[:-1])


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();")
    lexer.whitespace_split = True
    return [word for word in lexer if word not in {"(", ")", "sudo"}]


@pytest.mark.parametrize(
    "words", [["rc", "lst"], ["top", "--onc"], ["failsafe", "clear", "all"], ["rc", "get"]], ids=" ".join
)
def test_a_command_that_does_not_exist_is_found(words):
    with pytest.raises((click.UsageError, AssertionError)):
        accepts(farmctl, words)


@pytest.mark.parametrize("name", RUNBOOKS)
def test_links_lead_somewhere(name):
    for page, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", RUNBOOKS[name]):
        there = ROOT / "docs/runbooks" / page
        headings = [
            re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            for line in there.read_text().splitlines()
            if line.startswith("#")
        ]
        assert not anchor or anchor in headings
