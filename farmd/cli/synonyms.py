"""Words that users of kubectl, Nomad, Docker and systemctl type: they work, or name the command that does it.

A verb may come first, as with kubectl: ``get rc web`` is ``rc get web``, ``logs rc/web`` is ``rc logs web``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

OTHER_VERBS: Mapping[str, str] = {
    "ls": "list",
    "ps": "pods",
    "rm": "delete",
    "remove": "delete",
    "show": "describe",
    "inspect": "describe",
    "status": "describe",
    "scale": "set-replicas",
    "undo": "revert",
    "rollback": "revert",
    "cancel": "stop",
}
"""Verbs of nouns: in a group that lacks the first and has the second, they are the same."""

NOUNS: Mapping[str, str] = {
    "rcs": "rc",
    "controller": "rc",
    "controllers": "rc",
    "rollouts": "rollout",
    "daemonsets": "daemonset",
    "jobs": "job",
    "apps": "app",
    "deployments": "deployment",
    "services": "service",
    "svc": "service",
    "nodes": "node",
    "no": "node",
    "pods": "pod",
    "po": "pod",
    "allocs": "pod",
    "alloc": "pod",
    "containers": "pod",
    "container": "pod",
    "volumes": "volume",
    "secrets": "secret",
    "farms": "farm",
    "alerts": "alert",
}
_VERBS: Mapping[str, str] = {
    **{verb: verb for verb in ("describe", "delete", "edit", "restart", "explain", "enable", "disable")},
    **{verb: verb for verb in ("logs", "pods", "history", "pause", "resume", "update")},
    "scale": "set-replicas",
    "inspect": "describe",
    "status": "describe",
    "show": "describe",
    "rm": "delete",
    "stop": "stop",
}
_OF_NODES = frozenset({"drain", "undrain", "cordon", "uncordon", "taint", "untaint", "label", "capacity"})
_WHOLE: Mapping[str, Sequence[str]] = {
    "ps": ("pod", "list"),
    "exec": ("pod", "exec"),
    "cp": ("pod", "cp"),
    "port-forward": ("pod", "port-forward"),
    "ls": ("all",),
    "stats": ("top",),
    "members": ("farm", "list"),
    "up": ("deploy",),
    "journalctl": ("events",),
    "list-units": ("all",),
    "version": ("--version",),
}

POINTERS: Mapping[str, str] = {
    "attach": "farmctl pod logs -f NODE/INSTANCE follows what a pod writes",
    "proxy": "farmctl service endpoints NAME prints addresses that are reached directly",
    "annotate": "objects have labels only: farmctl rc edit NAME",
    "patch": "farmctl rc edit NAME, or farmctl rc update -f FILE",
    "replace": "farmctl rc update -f FILE",
    "set": "farmctl rc edit NAME, or farmctl rc update -f FILE",
    "expose": "farmctl service create NAME --port PORT rc/NAME",
    "autoscale": "farmd does not scale by itself: farmctl rc scale NAME N",
    "wait": "changes take --wait: farmctl rc update -f FILE --wait",
    "cluster-info": "farmctl doctor, or farmctl farm list",
    "info": "farmctl doctor, or farmctl top",
    "api-resources": "farmctl schema lists the kinds of documents",
    "start": "farmctl rc enable NAME, or farmctl rc scale NAME N",
    "run": "farmctl service run IMAGE for a container, farmctl job run -f FILE for a job",
    "create": "name the noun: farmctl rc create -f FILE; or farmctl apply -f FILE --app APP",
    "stop": "farmctl rc scale NAME 0 keeps the controller; farmctl job stop NAME stops a job",
    "kill": "farmctl pod restart NODE/INSTANCE, or farmctl rc scale NAME N",
    "down": "farmctl deploy --prune removes services that left the files; farmctl service delete NAME",
    "images": "farmctl pod describe NODE/INSTANCE names the image of a pod",
    "pull": "nodes pull the image of a pod when they start it",
    "compose": "farmctl deploy -f compose.yaml",
    "stack": "farmctl deploy -f compose.yaml",
    "swarm": "start farmd agent on each machine; farmctl node list shows them",
    "init": "farmd dev starts a fleet on this machine; docs/operations.md has the steps for others",
    "daemon-reload": "records count as soon as they are written",
    "is-active": "farmctl rc list, or farmctl rc get NAME -o json",
    "plan": "changes take --dry-run; farmctl diff and farmctl deploy --dry-run show plans",
    "validate": "farmctl rc diff -f FILE checks a file and shows what it would change",
    "eval": "farmctl rc explain NAME shows why nodes do or do not get its pods",
    "system": "farms clean up by themselves; farmctl doctor shows what is left",
    "monitor": "farmctl events -f",
    "ui": "each farm serves the page: farmctl farm list shows the addresses",
    "auth": "the token is in CONSUL_HTTP_TOKEN_FILE or --token-file",
    "namespace": "fleets are kept apart by FARMD_STORE__PREFIX",
}
"""What to do in place of words that farmctl has not."""

IN_NOUNS: Mapping[str, str] = {
    "node rm": "farmctl node forget NAME, for a node that is gone",
    "node delete": "farmctl node forget NAME, for a node that is gone",
    "node remove": "farmctl node forget NAME, for a node that is gone",
    "node stop": "farmctl node drain NAME",
    "node restart": "farmctl node drain NAME moves its pods away first",
    "node update": "farmctl node label, farmctl node taint, farmctl node capacity, farmctl node set",
    "stop": "farmctl rc scale NAME 0",
    "start": "farmctl rc enable NAME, or farmctl rc scale NAME N",
    "kill": "farmctl pod restart NODE/INSTANCE, farmctl job stop NAME, or farmctl rc scale NAME 0",
    "exec": "farmctl pod exec NODE/INSTANCE -it -- sh",
    "ssh": "farmctl pod exec NODE/INSTANCE -it -- sh",
    "rm": "farmctl rc scale NAME N, or farmctl rc delete NAME",
    "delete": "pods belong to owners: farmctl rc scale NAME N, or farmctl rc delete NAME",
    "eligibility": "farmctl node cordon NAME, farmctl node uncordon NAME",
    "events": "farmctl audit list --item NAME, or farmctl events",
    "top": "farmctl top",
    "apply": "farmctl apply -f FILE --app APP",
    "wait": "changes take --wait",
    "run": "farmctl job run -f FILE, or farmctl service run IMAGE",
}


def of_object(word: str) -> str:
    """How a verb is used that needs a noun before or behind it; empty: the word is no such verb."""
    verb = "get" if word == "get" else _VERBS.get(word, "")
    return f"farmctl NOUN {verb} NAME, such as farmctl rc {verb} web" if verb else ""


def rewritten(args: Sequence[str], known: Collection[str]) -> list[str]:
    """The words of a command line whose first word is no command, as farmctl has them; else the same words.

    ``known`` are the commands and their aliases.
    """
    word, rest = args[0], list(args[1:])
    if word == "help":
        return [*(rewritten(rest, known) if rest else []), "--help"]
    if word in NOUNS:
        return [NOUNS[word], *rest]
    if word in known:
        return list(args)
    if word in _OF_NODES and rest:
        return ["node", word, *(each.removeprefix("node/") for each in rest)]
    if word == "get":
        return _get(rest, known)
    if word in _VERBS and (found := _object(rest, known)) is not None:
        noun, names = found
        verb = _VERBS[word]
        return (
            [noun, verb, *(_replicas(each) for each in names)]
            if verb == "set-replicas"
            else [noun, verb, *names]
        )
    if word in _WHOLE:
        return [*_WHOLE[word], *rest]
    return list(args)


def _get(rest: Sequence[str], known: Collection[str]) -> list[str]:
    """``get all``, ``get rc``, ``get rc web``, ``get rc/web``."""
    if rest and rest[0] in {"all", "events"}:
        return list(rest)
    if (found := _object(rest, known)) is None:
        return ["get", *rest]
    noun, names = found
    return [noun, "get" if names and not names[0].startswith("-") else "list", *names]


def _object(rest: Sequence[str], known: Collection[str]) -> tuple[str, list[str]] | None:
    """The noun and the names behind a verb: ``rc web``, ``rc/web``; ``n1/web`` is a pod."""
    if not rest or rest[0].startswith("-"):
        return None
    first, slash, name = rest[0].partition("/")
    noun = NOUNS.get(first, first)
    if noun in known:
        return noun, [*([name] if slash else []), *rest[1:]]
    return ("pod", list(rest)) if slash else None


def _replicas(text: str) -> str:
    """kubectl's ``--replicas=5`` as the number."""
    return text.removeprefix("--replicas=")
