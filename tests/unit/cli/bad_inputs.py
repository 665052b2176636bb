"""Some 280 mistakes that people make on a command line and in files, and the word that the answer must have.

Fields and texts are those of a file; lines are whole command lines, with their exit codes.
"""

from __future__ import annotations

import json
from typing import Any

USAGE, NOT_FOUND, CONFLICT, UNAVAILABLE = 2, 4, 5, 7

_POD: dict[str, Any] = {"id": "web", "command": ["/srv/web"]}
_RC: dict[str, Any] = {"name": "web", "replicas": 2, "pod": _POD}
_DAEMONSET: dict[str, Any] = {"name": "logs", "pod": _POD}
_JOB: dict[str, Any] = {
    "name": "sum",
    "types": [{"name": "worker", "pod": {"id": "sum", "command": ["/bin/true"]}}],
}


def changed(document: dict[str, Any], path: str, value: Any) -> str:
    """A document with another value at a path such as ``pod.ports``; it is JSON, so it is YAML."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    at: Any = copy
    *folders, last = path.split(".")
    for name in folders:
        at = at.setdefault(name, {})
    at[last] = value
    return json.dumps(copy)


# (document, path, value, what the answer names)
FIELDS: list[tuple[str, str, Any, str]] = [
    *[("rc", "name", value, "name") for value in (7, "", "Web", "a b", "a/b", "-a", "x" * 64, None, ["web"])],
    *[("rc", "replicas", value, "replicas") for value in ("3", -1, 1.5, True, [], 10**12)],
    *[("rc", "labels", value, "labels") for value in ("a=b", ["a"], {"a": 1}, {"": "b"}, {"a b": "c"})],
    *[("rc", "pod_labels", value, "pod_labels") for value in ("a", {"a": None})],
    *[("rc", "node_selector", value, "node_selector") for value in (5, "a,,b", "a in (", "=", {"a": "b"})],
    *[("rc", "max_unavailable", value, "max_unavailable") for value in (-1, "150%", "x", 1.5, "-1%")],
    *[("rc", "min_healthy_time", value, "min_healthy_time") for value in ("soon", -1, "5 parsecs", [], "1y")],
    *[("rc", "strategy", value, "strategy") for value in ("fast", 1)],
    *[("rc", "on_lost", value, "on_lost") for value in ("ignore", None)],
    *[("rc", "needs", value, "needs") for value in ("gpu", [1])],
    *[("rc", "replicas_per_node", value, "replicas_per_node") for value in (0, "two")],
    *[("rc", "disabled", value, "disabled") for value in ("yes", 1)],
    *[
        ("rc", "replica", 3, "replica"),
        ("rc", "Pod", {}, "Pod"),
        ("rc", "unhealthy_after", "never", "unhealthy_after"),
    ],
    *[("rc", "pod", value, "pod") for value in (None, "web", [], {})],
    *[("rc", "pod.id", value, "id") for value in ("", 7, "A b", "x" * 200)],
    *[("rc", "pod.command", value, "command") for value in ("/srv/web", [], [1], {"a": 1})],
    *[("rc", "pod.args", value, "args") for value in ("x", [None], ["a\x00b"])],
    *[("rc", "pod.env", value, "env") for value in (["A=b"], {"A": 1}, {"": "x"}, {"A=B": "x"}, {"A": True})],
    *[
        ("rc", "pod.ports", value, "ports")
        for value in ([80], {"http": 80}, {"http": {"port": 70000}}, {"": {}})
    ],
    *[
        ("rc", "pod.health", value, "health")
        for value in ("http", {"type": "ping"}, {"type": "http"}, {"interval": "0s"})
    ],
    *[("rc", "pod.restart", value, "restart") for value in ("always", {"policy": "maybe"}, {"initial": -1})],
    *[("rc", "pod.stop", value, "stop") for value in ({"signal": "STOPPLEASE"}, {"grace": "long"}, 9)],
    *[
        ("rc", "pod.resources", value, "resources")
        for value in ({"cpu": "lots"}, {"memory": "64m"}, {"cpu": -1}, 4)
    ],
    *[("rc", "pod.user", value, "user") for value in (0, ["root"])],
    *[("rc", "pod.working_directory", value, "working_directory") for value in ("srv", 1)],
    *[("rc", "pod.ulimits", value, "ulimits") for value in ({"nofiles": 1}, {"nofile": "many"}, "nofile")],
    *[("rc", "pod.logs", value, "logs") for value in ({"keep": -1}, {"max_bytes": "ten"}, [])],
    *[("rc", "pod.placement", value, "placement") for value in ({"spread": 3}, {"near": "db"}, "n1")],
    *[
        ("rc", "pod.comand", ["x"], "comand"),
        ("rc", "pod.stop_after", "x", "stop_after"),
        ("rc", "pod.system", 1, "system"),
    ],
    *[
        ("rc", "rollout", value, "rollout")
        for value in (5, {"stages": [0.5]}, {"stages": ["half"]}, {"strategy": "big"})
    ],
    *[("rc", "rollout.progress_deadline", value, "progress_deadline") for value in (0, "40d", "x")],
    *[("rc", "rollout.health_deadline", value, "health_deadline") for value in ("20m", -1, "x")],
    *[("rc", "rollout.minimum", value, "minimum") for value in ("half", -1, 1.5)],
    *[
        ("rc", "rollout.stages", value, "stages")
        for value in ([5, 1], ["50%"], [{"to": 1, "rest": 5}], "1,2")
    ],
    *[
        ("rc", "rollout.gates", value, "gates")
        for value in ([{}], [{"name": "a"}], [{"name": "a", "http": "ftp://x"}])
    ],
    *[("rc", "rollout.on_failure", "panic", "on_failure"), ("rc", "rollout.ratio", 0, "ratio")],
    *[("daemonset", "min_health", value, "min_health") for value in ("all", -1, "120%")],
    *[("daemonset", "rate", value, "rate") for value in (-1, "fast")],
    *[("daemonset", "max_in_progress", value, "max_in_progress") for value in (0, "x")],
    *[("daemonset", "replicas", 3, "replicas"), ("daemonset", "name", "A", "name")],
    *[("job", "types", value, "types") for value in ([], {}, "worker", [{}], [{"name": "W"}])],
    *[("job", "backoff_limit", value, "backoff_limit") for value in (-1, "x")],
    *[("job", "gang", "yes", "gang"), ("job", "ttl", "x", "ttl"), ("job", "type", {}, "type")],
]

DOCUMENTS = {"rc": _RC, "daemonset": _DAEMONSET, "job": _JOB}
VERBS = {"rc": ("rc", "create"), "daemonset": ("daemonset", "create"), "job": ("job", "run")}

# (bytes of a file, what the answer names)
TEXTS: list[tuple[bytes, str]] = [
    (b"", "document"),
    (b"   \n\n", "document"),
    (b"# only a comment\n", "document"),
    (b"---\n---\n", "document"),
    (b"\xff\xfe\x00name", "UTF-8"),
    (b"name: w\xe9b\n", "UTF-8"),
    (b"name: web\n\tpod: x\n", "line 2"),
    (b"name: [web\n", "line"),
    (b"{", "line"),
    (b"name: web\nname: api\n", "name"),
    (b"- name: web\n", "mapping"),
    (b"web\n", "mapping"),
    (b"5\n", "mapping"),
    (b"null\n", "document"),
    (b"a: &a [1]\nb: *c\n", "c"),
    (b"name: !!python/object:os.system web\n", "python"),
    (b"name: \x00web\n", "control characters"),
    (b"x" * (8 << 20) + b"x", "8388608"),
    (
        b"name: web\nreplicas: 1\npod: {id: web, command: [x]}\n"
        b"---\nname: web\nreplicas: 1\npod: {id: web, command: [x]}\n",
        "web",
    ),
    (b"services: {web: {image: nginx}}\n", "compose"),
    (b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n", "apps/v1"),
    (b"apiVersion: farmd/v9\nkind: ReplicationController\nname: web\n", "apiVersion"),
    (b"kind: DaemonSet\nname: web\npod: {id: web, command: [x]}\n", "daemonset"),
    (b"kind: Nonsense\nname: web\n", "Nonsense"),
    (b"[" * 3000 + b"]" * 3000, "line"),
]

OTHER_COMMANDS: list[tuple[str, str, str]] = [
    ("apply -f FILE --app a", "services: {web: {image: nginx}}", "farmctl deploy"),
    ("apply -f FILE --app a", "name: web\npod: {}", "farmctl example"),
    ("deploy -f FILE", "name: web\npod: {id: web, command: [x]}", "not a compose file"),
    ("deploy -f FILE", "apiVersion: farmd/v1\nkind: rc\nname: web", "farmctl apply"),
    ("rc create -f FILE", "kind: job\nname: a", "farmctl job run"),
    ("job run -f FILE", "apiVersion: farmd/v1\nkind: rc\nname: a", "farmctl rc create"),
    ("daemonset create -f FILE", "kind: rc\nname: a", "farmctl rc create"),
    ("schedule create -f FILE", "kind: app\nname: a", "farmctl apply"),
    ("rollout create -f FILE", "services: {web: {image: nginx}}", "farmctl deploy"),
]
"""Files that another command takes: the command line, the file, and what the answer names."""

# (command line, what the answer names, exit code)
LINES: list[tuple[str, str, int]] = [
    ("rcc list", "rcc", USAGE),
    ("rc lst", "lst", USAGE),
    ("rc get", "NAME", USAGE),
    ("rc get a b", "b", USAGE),
    ("rc list --selektor a=b", "--selektor", USAGE),
    ("rc list -o xml", "--output", USAGE),
    ("rc list -l a,,b", "selector", USAGE),
    ("rc scale web", "REPLICAS", USAGE),
    ("rc scale web many", "many", USAGE),
    ("rc scale web -1", "-1", USAGE),
    ("rc scale web 1.5", "1.5", USAGE),
    ("rc create", "--file", USAGE),
    ("rc create -f", "-f", USAGE),
    ("rc create -f /nonexistent.yaml", "/nonexistent.yaml", USAGE),
    ("rc create -f /", "/", USAGE),
    ("rc create -f /proc/1/mem", "/proc/1/mem", USAGE),
    ("rc update -f /nonexistent.yaml --now", "/nonexistent.yaml", USAGE),
    ("rc diff -f /nonexistent.yaml", "/nonexistent.yaml", USAGE),
    ("rc logs web --tail x", "--tail", USAGE),
    ("rc logs web --tail -5", "--tail", USAGE),
    ("rc logs web --since yesterday", "--since", USAGE),
    ("rc logs web --tail 1 --tail 2", "--tail", USAGE),
    ("rc delete", "NAME", USAGE),
    ("rc create -f /dev/null --timeout soon", "--timeout", USAGE),
    ("rc create -f /dev/null --sign-for x", "--sign-for", USAGE),
    ("rollout create", "rc", USAGE),
    ("rollout create --rc web", "to", USAGE),
    ("rollout create --rc web --to b --manifest /nonexistent", "/nonexistent", USAGE),
    ("rollout create -f /nonexistent", "/nonexistent", USAGE),
    ("rollout create --rc web --to b --stages x", "stages", USAGE),
    ("rollout create --rc web --to b --bake x", "--bake", USAGE),
    ("rollout scale web 0", "0", USAGE),
    ("rollout scale web x", "x", USAGE),
    ("rollout revert web --to x", "--to", USAGE),
    ("rollout revert web --to -1", "--to", USAGE),
    ("rollout status", "NAME", USAGE),
    ("node label n1", "KEY=VALUE", USAGE),
    ("node label n1 a b", "a", USAGE),
    ("node label n1 =b", "labels", USAGE),
    ("node label n1 a=b a-", "a", USAGE),
    ("node taint n1 a=b:sometimes", "sometimes", USAGE),
    ("node capacity n1 cpu=lots", "cpu", USAGE),
    ("node capacity n1 cpu", "cpu", USAGE),
    ("node drain n1 --deadline soon", "--deadline", USAGE),
    ("node drain", "NAMES", USAGE),
    ("node set n1", "--address", USAGE),
    ("node set n1 --signatures maybe", "--signatures", USAGE),
    ("node token", "NAME", USAGE),
    ("pod logs", "NODE/INSTANCE", USAGE),
    ("pod describe a/b/c", "a/b", USAGE),
    ("pod list -l a,,b", "selector", USAGE),
    ("pod top --sort disk", "--sort", USAGE),
    ("service create web", "--port", USAGE),
    ("service scale web x", "x", USAGE),
    ("service scale web -3", "-3", USAGE),
    ("service run", "IMAGE", USAGE),
    ("volume create data", "--node", USAGE),
    ("deploy -f /nonexistent.yaml", "/nonexistent.yaml", USAGE),
    ("deploy --profil x", "--profil", USAGE),
    ("apply -f /nonexistent", "/nonexistent", USAGE),
    ("apply -f /nonexistent --app shop", "/nonexistent", USAGE),
    ("apply --app shop", "--file", USAGE),
    ("diff -f /nonexistent --app shop", "/nonexistent", USAGE),
    ("app rollback shop --to x", "--to", USAGE),
    ("app get shop --revision x", "--revision", USAGE),
    ("job run", "--file", USAGE),
    ("job run -f /nonexistent", "/nonexistent", USAGE),
    ("job run -f /nonexistent --param x", "x", USAGE),
    ("job logs", "JOB", USAGE),
    ("job logs sum --attempt x", "--attempt", USAGE),
    ("schema nonsense", "nonsense", USAGE),
    ("schema rc.pod.nonsense", "nonsense", USAGE),
    ("example nonsense", "nonsense", USAGE),
    ("import /nonexistent", "/nonexistent", USAGE),
    ("manifest keygen /nonexistent/key", "/nonexistent/key", USAGE),
    ("manifest sign rc -f /nonexistent --key /nonexistent", "/nonexistent", USAGE),
    ("manifest verify", "NOUN/NAME", USAGE),
    ("manifest restore /nonexistent", "/nonexistent", USAGE),
    ("audit list --since x", "--since", USAGE),
    ("audit list -n x", "-n", USAGE),
    ("events --since never", "--since", USAGE),
    ("alert test", "SINK", USAGE),
    ("alert test x --config /nonexistent", "/nonexistent", USAGE),
    ("failsafe clear", "KIND", USAGE),
    ("failsafe clear nodes --for x", "--for", USAGE),
    ("token create ada", "--role", USAGE),
    ("token create ada --role king", "--role", USAGE),
    ("completion tcsh", "tcsh", USAGE),
    ("--token-file /nonexistent rc list", "/nonexistent", USAGE),
    ("--http-addr ftp://x rc list", "ftp", USAGE),
    ("--http-addr x:y rc list", "x:y", USAGE),
    ("--dc d/c rc list", "--dc", USAGE),
    ("--dc dc2 rc list --all-dcs", "--all-dcs", USAGE),
    ("job list --all-dcs -n x", "--all-dcs", USAGE),
    ("top --usage --all-dcs", "--usage", USAGE),
    ("top --usage --max-nodes 0", "--max-nodes", USAGE),
    ("apply -f - --app shop --dcs a,a", "--dcs", USAGE),
    ("apply -f - --app shop --bake 5s", "--dcs", USAGE),
    ("apply -f - --app shop --dcs a --no-wait", "--no-wait", USAGE),
    ("--dc dc2 rc list", "127.0.0.1:1", UNAVAILABLE),
    ("rc list --all-dcs", "127.0.0.1:1", UNAVAILABLE),
    ("frobnicate", "frobnicate", USAGE),
    ("get", "", USAGE),
    *((f"{option} '' rc list", option, USAGE) for option in ("--http-addr", "--token-file", "--dc")),
    ("rc create -f a.yaml --sign ''", "--sign", USAGE),
    ("rc scale --replicas 3 web", "--replicas", USAGE),
    ("rc scale web --wiat 3", "--wiat", USAGE),
    ("config set a --flie x", "--flie", USAGE),
    ("doctor --fix", "farmctl doctor --help", USAGE),
    ("rc list --watch=true", "farmctl rc list --help", USAGE),
    ("node rm n1", "node forget", USAGE),
    ("rc get 'a\nb'", "printable", USAGE),
    ("rc describe 'web\x1b[31m'", "printable", USAGE),
    ("rc delete web 'web\u202e' -y", "printable", USAGE),
    ("rc scale '\x7f' 3", "printable", USAGE),
    ("pod logs 'n1/we\tb'", "instance", USAGE),
    ("pod restart n1/web 'n1/we\tb'", "instance", USAGE),
    ("service create web --port http 'rc/we\x00b'", "printable", USAGE),
    ("manifest verify 'rc/we\nb'", "printable", USAGE),
    ("app release shop 'rc/we\nb'", "printable", USAGE),
    ("config list ../..", "'..'", USAGE),
    ("config get 'a\nb'", "printable", USAGE),
    ("job logs 'su\nm'", "printable", USAGE),
    ("rollout retry 'we\nb'", "printable", USAGE),
    ("rc get \udcff", "UTF-8", USAGE),
    ("config set a \udcff", "UTF-8", USAGE),
    ("rc list -l \udcff", "UTF-8", USAGE),
    ("--http-addr \udcff rc list", "UTF-8", USAGE),
    ("--http-addr .. rc list", "address", USAGE),
    (f"--http-addr {'x' * 100} rc list", "address", USAGE),
    (f"apply -f {'x' * 300}", "xxx", USAGE),
    (f"import {'x' * 300}", "xxx", USAGE),
    (f"deploy -f {'x' * 300}", "xxx", USAGE),
    (f"rc create -f {'x' * 300}", "xxx", USAGE),
    ("rc scale web \u0663", "\u0663", USAGE),
    ("rc scale web 99999999999999999999", "99999999999999999999", USAGE),
    ("rc logs web --since \u0663", "--since", USAGE),
    ("rc logs web --tail ' 1'", "--tail", USAGE),
    ("rollout create --rc web --to b --replicas -1", "--replicas", USAGE),
    ("service rollback web --to -1", "--to", USAGE),
    ("service rollback web --to 1_0", "--to", USAGE),
    ("kubernetes install --print --namespace Prod", "--namespace", USAGE),
    ("job list -n 'a b'", "--namespace", USAGE),
    ("apply -f /dev/null -n ../x", "--namespace", USAGE),
    ("describe web", "web", USAGE),
    ("set image rc/web x", "rc edit", USAGE),
    ("expose rc web", "expose", USAGE),
    ("rc list", "127.0.0.1:1", UNAVAILABLE),
    ("rc get web", "127.0.0.1:1", UNAVAILABLE),
    ("rc scale web 3", "127.0.0.1:1", UNAVAILABLE),
    ("rollout status web", "127.0.0.1:1", UNAVAILABLE),
    ("node list", "127.0.0.1:1", UNAVAILABLE),
    ("node drain n1", "127.0.0.1:1", UNAVAILABLE),
    ("pod list", "127.0.0.1:1", UNAVAILABLE),
    ("service list", "127.0.0.1:1", UNAVAILABLE),
    ("app list", "127.0.0.1:1", UNAVAILABLE),
    ("audit list", "127.0.0.1:1", UNAVAILABLE),
    ("top", "127.0.0.1:1", UNAVAILABLE),
    ("all", "127.0.0.1:1", UNAVAILABLE),
    ("deployment list", "127.0.0.1:1", UNAVAILABLE),
    ("failsafe status", "127.0.0.1:1", UNAVAILABLE),
]
