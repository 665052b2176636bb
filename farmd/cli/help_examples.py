"""An example for each command's help; a test parses each of them, so that none goes stale."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES: Mapping[str, str] = {
    "rc": "web",
    "daemonset": "uptime",
    "rollout": "web",
    "deployment": "shop-1",
    "node": "web1",
    "job": "squares",
    "app": "shop",
    "service": "web",
    "pod": "web1/hello",
}
_OF_NOUNS: Mapping[str, str] = {
    "create": "-f {name}.yaml --wait",
    "list": "-o wide",
    "get": "{name} -o yaml",
    "describe": "{name}",
    "pods": "{name}",
    "logs": "{name} -f --since 10m",
    "explain": "{name}",
    "update": "-f {name}.yaml --wait",
    "edit": "{name}",
    "diff": "-f {name}.yaml",
    "enable": "{name}",
    "disable": "{name} --reason 'moving the disk'",
    "delete": "{name} -y",
    "restart": "{name} --wait",
    "history": "{name}",
    "status": "{name}",
    "pause": "{name} --reason 'looking at errors'",
    "resume": "{name}",
    "rollback": "{name}",
    "stop": "{name}",
}
_OWN: Mapping[str, str] = {
    "rc scale": "web 5 --wait",
    "rc set-replicas": "web 5 --wait",
    "rc delete": "web --cascade -y",
    "daemonset delete": "uptime --cascade -y",
    "rollout create": "--rc web --manifest pod.yaml --stages 1,50%,100%",
    "rollout approve": "web",
    "rollout revert": "web --to 2 --reason 'errors in the new version'",
    "rollout abort": "web",
    "rollout scale": "web 12",
    "rollout diff": "web",
    "rollout plan": "-f service.yaml",
    "rollout promote": "ksvc/shop/web",
    "rollout retry": "ksvc/shop/web",
    "node register": "web1 web2",
    "node label": "web1 rack=r1 role-",
    "node taint": "web1 dedicated=db:no-schedule",
    "node untaint": "web1 dedicated",
    "node capacity": "web1 cpu=4 memory=8Gi",
    "node cordon": "web1 --reason 'new disk'",
    "node uncordon": "web1",
    "node drain": "web1 --deadline 30m --wait",
    "node undrain": "web1",
    "node forget": "web1 -y",
    "job run": "-f squares.yaml --wait",
    "app release": "shop rc/web",
    "app rollback": "shop --to 3",
    "deploy": "-f compose.yaml -p shop --dry-run",
    "apply": "-f shop/ --app shop",
    "diff": "-f shop/ --app shop",
    "schema": "rc.pod.health",
    "example": "rc > web.yaml",
    "export": "backup/",
    "import": "backup/ --dry-run",
    "all": "-o name",
    "events": "--since 1h -f",
    "service run": "nginx:1.27 -n web",
    "service scale": "web 5",
    "service rollback": "web --to 3",
    "service create": "web --port http rc/web",
    "service list": "",
    "service endpoints": "web --watch",
    "volume list": "",
    "volume create": "data --node web1",
    "volume delete": "data --node web1",
    "manifest keygen": "ada.key",
    "manifest sign": "rc/web --key ada.key",
    "manifest restore": "signatures.txt",
    "manifest revoke": "rc/web --key ada.key",
    "manifest verify": "rc/web",
    "audit list": "--item web --since 1d",
    "alert list": "",
    "alert test": "pagerduty --config /etc/farmd/farmd.toml",
    "failsafe status": "",
    "failsafe clear": "nodes --evidence '4 of 5 agents absent' --for 10m --reason 'rack moved'",
    "kubernetes accept": "",
    "kubernetes install": "--print",
    "kubernetes status": "",
    "kubernetes uninstall": "--print",
    "doctor": "",
    "debug bundle": "farmd.tar.gz",
    "top": "",
    "token create": "ada --role operator",
    "completion": "bash > ~/.local/share/bash-completion/completions/farmctl",
}


def example(path: str) -> str:
    """The example of a command such as ``farmctl rc list``; empty: it has none."""
    program, _, words = path.partition(" ")
    noun, _, verb = words.partition(" ")
    found = _OWN.get(words)
    if found is None and noun in _NAMES and verb in _OF_NOUNS:
        found = _OF_NOUNS[verb].format(name=_NAMES[noun])
    return "" if found is None else f"{program} {words} {found}".rstrip()
