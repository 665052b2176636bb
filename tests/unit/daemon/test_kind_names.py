"""A file that kinds of work share names none of them: it asks the registry (``farmd/kinds.py``).

Judged are identifiers, imports and texts; docstrings and comments may give examples.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from farmd.kinds import KINDS

pytestmark = pytest.mark.xdist_group("source")  # it is read once

ROOT = Path(__file__).parents[3]
REGISTRIES = (
    *("farmd/kinds.py", "farmd/declaration.py", "store/families.py"),
    *("farmd/cli/__init__.py", "farmd/cli/nouns.py"),
)

WORDS = {
    "rcs": r"(?<![a-z])(?-i:rcs?|RCs?|RCS)(?![a-z])|replication_?controller",
    "rollouts": r"rollout",
    "deployments": r"deployment",
    "daemonsets": r"daemon[ _-]?set",
    "jobs": r"(?<![a-z])jobs?(?![a-z])",
    "schedules": r"(?<![a-z])schedules(?![a-z])|store\.schedules",  # a scheduler has a schedule, too
    "jobtemplates": r"job[-_ ]?templates?",
    "apps": r"(?<![a-z])apps(?![a-z])",
    "kubejobs": r"kube_?jobs",
    "progressive": r"progressive|kubernetes\.knative",
    "housekeeping": r"house[ _-]?keeping",
    "catalog": r"farmd[./]catalog|Catalog\(Kind\)",
}
"""How code would name a kind. Nodes are missing: every owner has pods on nodes."""

OUTSIDE = "the same kinds, where their items lie in Kubernetes"
MANAGES = "it changes items of that kind, which is what it is for"
STATE = "a record has fields for those that change it"
SECTION = "the configuration's sections and keys are one table"
EXAMPLE = "a text for people, with an example or an advice"
P2 = "p2's name"
REVERTED = "a version that failed is one type for all owners that rollouts change"
FOREIGN = "the word of another system, or of another thing"
EXCEPTIONS = {
    "daemonsets": {
        "farmd/kubernetes/": FOREIGN,
        "farmd/rollout/": MANAGES,
        "farmd/tables/rollouts.py": MANAGES,
        "farmd/cli/help_examples.py": EXAMPLE,
        "farmd/cli/synonyms.py": FOREIGN,
        "farmd/commands/schema.py": EXAMPLE,
    },
    "rcs": {
        "farmd/cli/help_examples.py": EXAMPLE,
        "farmd/cli/synonyms.py": FOREIGN,
        "farmd/commands/schema.py": EXAMPLE,
        "farmd/rollout/": MANAGES,
        "farmd/tables/rollouts.py": MANAGES,
        "farmd/cli/rollout": MANAGES,
        "farmd/deploy/": MANAGES,
        "farmd/daemonset/": REVERTED,
        "store/daemonsets.py": REVERTED,
        "farmd/kubernetes/": FOREIGN,
        "farmd/dev/": EXAMPLE,
        "farmd/cli/apply.py": EXAMPLE,
        "farmd/cli/audit.py": EXAMPLE,
        "farmd/cli/manifest.py": EXAMPLE,
        "farmd/cli/service_edit.py": EXAMPLE,
        "store/rollouts.py": "the history of a rollout holds the controller as it was",
        "store/labels.py": P2,
        "store/locks.py": P2,
        "scheduler/constraints.py": FOREIGN,
    },
    "rollouts": {
        "farmd/cli/help_examples.py": EXAMPLE,
        "farmd/cli/synonyms.py": FOREIGN,
        "farmd/commands/schema.py": EXAMPLE,
        "farmd/commands/field_words.py": "it says what fields of documents mean",
        "farmd/web/": "people follow rollouts on the page, and act on them",
        "farmd/kubernetes/": OUTSIDE,
        "farmd/cli/kubernetes.py": OUTSIDE,
        "farmd/work/following.py": MANAGES,
        "farmd/daemonset/": "the file of a daemon set holds the policy of its rollouts",
        "store/daemonsets.py": STATE,
        "farmd/replication/": "the file of a controller holds the policy of its rollouts",
        "farmd/config/": SECTION,
        "farmd/doctor/work.py": "a rollout whose state is lost halts, where other items begin anew",
        "farmd/observe/": FOREIGN,
        "farmd/dev/": EXAMPLE,
        "store/rcs.py": STATE,
        "store/work.py": STATE,
    },
    "deployments": {
        "farmd/cli/help_examples.py": EXAMPLE,
        "farmd/cli/synonyms.py": FOREIGN,
        "farmd/commands/schema.py": EXAMPLE,
        "farmd/kubernetes/": FOREIGN,
        "farmd/cli/deploy": MANAGES,
        "farmd/cli/service_": MANAGES,
        "farmd/compose/": MANAGES,
        "farmd/services/": "a service names the deployment that changes it (R13)",
        "farmd/tables/services.py": "a service names the deployment that changes it (R13)",
        "farmd/web/item_lists.py": "a service names the deployment that changes it (R13)",
        "farmd/apps/": "nobody watches services; their deployments tell of them",
        "farmd/doctor/": "a service may name a deployment that is over",
        "farmd/nodes/": "a deployment holds manifests before its owners do",
        "store/services.py": STATE,
        "store/work.py": STATE,
    },
    "jobs": {
        "farmd/cli/help_examples.py": EXAMPLE,
        "farmd/cli/synonyms.py": FOREIGN,
        "farmd/commands/schema.py": EXAMPLE,
        "farmd/commands/field_words.py": "it says what fields of documents mean",
        "farmd/kubernetes/": OUTSIDE,
        "farmd/cli/kubernetes.py": OUTSIDE,
        "farmd/config/": SECTION,
        "farmd/compose/": FOREIGN,
        "farmd/observe/": FOREIGN,
        "farmd/doctor/": "runs are beside their jobs, and are left where these are gone",
        "farmd/housekeeping/": "runs are beside their jobs, and are left where these are gone",
        "farmd/schedules/": MANAGES,
        "farmd/tables/schedules.py": MANAGES,
        "store/schedules.py": MANAGES,
        "farmd/jobtemplates/": MANAGES,
        "farmd/tables/jobtemplates.py": MANAGES,
        "store/jobtemplates.py": MANAGES,
        "farmd/agent/agent.py": "the feature of agents that keep R29",
        "store/features.py": "the feature of agents that keep R29",
        "store/variables.py": "what a member is told of its job",
    },
    "jobtemplates": {
        "farmd/schedules/": "a schedule may name a template",
        "farmd/cli/help_examples.py": EXAMPLE,
        "farmd/commands/schema.py": EXAMPLE,
        "farmd/commands/field_words.py": "it says what fields of documents mean",
    },
    "apps": {
        "farmd/cache/caches.py": "people write apps, too, which have no names of their own",
        "farmd/cli/everything.py": "apps own no pods, so it asks for their table by itself",
        "farmd/cli/main.py": "its help says what all lists",
        "farmd/cli/synonyms.py": FOREIGN,
        "farmd/commands/heads.py": "it names the command that takes each kind of document",
        "farmd/kubernetes/": OUTSIDE,
        "farmd/commands/schema.py": "the version of documents stands beside the records of apps",
        "farmd/process/farm_service.py": OUTSIDE,
        "farmd/cli/farm.py": "apps own no pods, so top asks for their table by itself",
        "farmd/cli/export.py": "what is exported is read again as bundles are, and apps have theirs",
        "farmd/doctor/": "what bears the mark of an app that is gone",
        "store/work.py": STATE,
    },
    "progressive": {
        "farmd/kubernetes/install.py": "it installs what each kind there needs",
        "farmd/cli/kubernetes.py": OUTSIDE,
        "farmd/cli/rollout": OUTSIDE,
    },
    "housekeeping": {
        "farmd/config/": SECTION,
    },
}
"""Shared files that name a kind all the same, by the beginning of their paths, and why."""


def own(family: str) -> tuple[str, ...]:
    """Where a kind is at home."""
    kind = KINDS[family]
    package = kind.runs().__module__.removesuffix(".kind").replace(".", "/")
    return (
        f"{package}/",
        f"store/{family}.py",
        f"farmd/tables/{family}.py",
        f"farmd/web/{family}.py",
        *([f"farmd/cli/{kind.noun.replace('-', '_')}"] if kind.noun else []),
    )


def said(tree: ast.Module) -> Iterator[str]:
    """All identifiers and texts of a module but those that are statements: docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.alias(name=text):
                yield text
            case ast.arg(arg=text) | ast.keyword(arg=str(text)) | ast.ImportFrom(module=str(text)):
                yield text
            case ast.ClassDef(name=text) | ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text):
                yield text


@cache
def modules() -> dict[str, str]:
    """What each module says, a word or a text a line."""
    paths = [
        path for part in ("farmd", "store", "scheduler", "alerting") for path in (ROOT / part).rglob("*.py")
    ]
    return {str(path.relative_to(ROOT)): "\n".join(said(ast.parse(path.read_text()))) for path in paths}


def naming(family: str) -> set[str]:
    """The modules that are not a kind's own and name it."""
    home = (*own(family), *REGISTRIES)
    word = re.compile(WORDS[family], re.IGNORECASE)
    return {path for path, text in modules().items() if not path.startswith(home) and word.search(text)}


def test_every_kind_but_nodes_has_words() -> None:
    assert WORDS.keys() == KINDS.keys() - {"nodes"}


@pytest.mark.parametrize("family", WORDS)
def test_no_shared_file_names_a_kind(family: str) -> None:
    allowed = tuple(EXCEPTIONS.get(family, {}))
    named = sorted(path for path in naming(family) if not path.startswith(allowed))
    assert named == [], f"they name {family}: let them ask the registry, or say in EXCEPTIONS why not"


@pytest.mark.parametrize("family", EXCEPTIONS)
def test_no_exception_outlives_its_reason(family: str) -> None:
    for place in EXCEPTIONS[family]:
        assert any(path.startswith(place) for path in naming(family)), place
