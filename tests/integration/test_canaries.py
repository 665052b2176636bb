"""No secret is told: one walk that puts a canary into every input, then looks at all that farmd says.

Consul is real and denies by default. What a manifest says lies in the store and in an export by design
(docs/trust.md); it is looked for in everything else.
"""

from __future__ import annotations

import base64
import json
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from farmd.config import sources
from farmd.config.sections import every_key
from farmd.config.sources import load
from farmd.web import tokens
from store.consul.client import ConsulClient
from store.keys import Keys
from store.services import Hook, Service, ServiceStore, Version
from tests.canaries import ADDRESS, CONFIGURATION, FILE, PEM, VALUE, canary
from tests.certificates import authority, caller, issue
from tests.fleet import LIMIT
from tests.guarded import NODES, AsRole, Guarded, asked, guarded_consul, world
from tests.kubeconfigs import kubeconfig
from tests.processes import Program, eventually, stopped_at_the_end

pytestmark = pytest.mark.xdist_group("access")

WORKLOAD, HOOK, CONTENT, PARAMETER = (canary(word) for word in ("workload", "hook", "content", "parameter"))
SEALED = canary("sealed")
SIGNED, PAGER, SLACK, NAMED = (canary(word) for word in ("signed", "pager", "slack", "named"))
HELLO = (
    "{name: hello, replicas: 1, min_healthy_time: 0, pod: {id: hello, stop: {grace: 1},"
    f" env: {{PASSWORD: {WORKLOAD}, KEY: {{secret: shop/db}}}}, secrets: [{{secret: shop/db}}],"
    " command: [sh, -c, 'echo started; sleep 1000']}}"
)
BERT = (
    "{name: bert, parameters: {key: none}, types: [{name: worker, replicas: 1, pod: {id: bert,"
    " stop: {grace: 1}, env: {PASSWORD: '${param.key}'}, command: [sleep, '1000']}}]}"
)
LOOKS = (
    "rc list", "rc get hello", "rc describe hello", "rc explain hello", "rc pods hello", "job list",
    "job describe bert", "job explain bert", "service list", "service describe shop", "deployment list",
    "node list", "node describe node-1", "pod list", "pod describe node-1/hello", "farm list", "audit list",
    "alert list", "app list", "rollout list", "daemonset list", "volume list", "failsafe status", "doctor",
    "events", "top", "secret list", "secret describe shop/db", "secret history shop/db", "secret get shop/db",
    "secret group list",
)  # fmt: skip


OWN_MACHINE = {"sinks.url: path": ["check-config --print", "check-config --explain"]}
"""Told to who may read the configuration, and nobody else; a secret address stands in ``secret_file``."""


@dataclass
class Heard:
    """What was said, by where."""

    said: dict[str, str] = field(default_factory=dict)

    def add(self, where: str, text: str) -> None:
        assert text.strip(), where
        self.said[where] = self.said.get(where, "") + text

    def tells(self, secret: str) -> list[str]:
        """Where a secret is told, plain or as Basic credentials have it."""
        forms = {secret, base64.b64encode(f"user:{secret}".encode()).decode()}
        return [where for where, text in self.said.items() if any(form in text for form in forms)]


@dataclass
class Planted:
    """The secrets that were put in, by the input."""

    folder: Path
    secrets: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def file(self, name: str, content: str) -> str:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(content)
        return str(path)

    def put(self, key: str, form: str, guarded: Guarded) -> str:
        """The value of a setting, with a canary in it."""
        if key not in self.values:
            self.values[key] = self._made(key, form, guarded)
        return self.values[key]

    def _made(self, key: str, form: str, guarded: Guarded) -> str:
        word = re.sub(r"\W|_", "", key)
        secret = self.secrets[key] = canary(word)
        if form == ADDRESS:
            return f"http://user:{secret}@127.0.0.1:1"
        if key == "store.token_file":
            self.secrets[key] = guarded.token_file("farm").read_text().strip()
            return str(guarded.token_file("farm"))
        if key == "kubernetes.kubeconfig":
            return self.file(word, kubeconfig({"server": "https://127.0.0.1:1"}, {"token": secret}))
        if key == "agent.registry_auth":
            auth = base64.b64encode(f"user:{secret}".encode()).decode()
            return self.file(word, json.dumps({"auths": {"registry.example": {"auth": auth}}}))
        if key == "agent.secrets_dir":
            (self.folder / word).mkdir()
            self.file(f"{word}/database", secret)
            return str(self.folder / word)
        if key == "web.tokens":
            self.secrets[key], line = tokens.made("ada", "operator")
            self.secrets["web.tokens: hash"] = line.rpartition(":")[2]
            return self.file(word, line)
        if form == PEM:
            text = (self.folder / "farm.key").read_text()
            self.secrets[key] = text.splitlines()[1]
            return str(self.folder / "farm.key")
        assert form in {FILE, VALUE}, key
        return self.file(word, secret)


TWO_CREDENTIALS = (
    {"scheduler.url", "rollouts.prometheus_token_file"},
    {"scheduler.token_file", "rollouts.prometheus_url"},
)
"""Settings that do not stand together, since one request has one credential."""


def configuration(planted: Planted, guarded: Guarded, left: set[str]) -> str:
    """A file with every setting that may hold a secret but some that are left out."""
    lines: dict[str, list[str]] = {}
    for key, form in CONFIGURATION.items():
        section, _, name = key.partition(".")
        if form and section != "sinks" and key not in left:
            lines.setdefault(section, []).append(f'{name} = "{planted.put(key, form, guarded)}"')
    lines["web"].append(f'tls_cert = "{planted.folder}/farm.pem"')
    lines["web"].append('read = "token"')
    lines["log"] = ['level = "debug"']
    lines["scheduler"].append("pause = 1")
    sinks = (
        (
            "webhook",
            f'url = "http://user:{canary("webhook")}@127.0.0.1:1/{canary("path")}"\nsecret = "{SIGNED}"',
        ),
        ("pagerduty", f'url = "http://127.0.0.1:1"\nsecret_file = "{planted.file("pager", PAGER)}"'),
        ("slack", f'secret_file = "{planted.file("slack", f"http://127.0.0.1:1/{SLACK}")}"'),
        ("alertmanager", f'url = "http://user:{canary("manager")}@127.0.0.1:1"'),
        ("webhook", 'name = "of-env"\nurl = "http://127.0.0.1:1"\nsecret_env = "HOOK_SECRET"'),
    )
    for word in ("webhook", "path", "manager"):
        planted.secrets[f"sinks.url: {word}"] = canary(word)
    planted.secrets |= {
        "sinks.secret": SIGNED,
        "sinks.secret_file": PAGER,
        "slack": SLACK,
        "sinks.secret_env": NAMED,
    }
    text = "\n".join(f"[{name}]\n" + "\n".join(found) for name, found in lines.items())
    return text + "".join(f'\n[[alerts.sinks]]\ntype = "{kind}"\n{rest}' for kind, rest in sinks)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=True) as made:
        yield made


def seal(operator: AsRole, path: Path) -> dict[str, str]:
    """Make a secret that the node can open whose identity comes into this file."""
    recipient = operator.ok("secret", "keygen", "-o", str(path)).out.strip()
    operator.ok("secret", "group", "create", "prod", "--recipient", recipient)
    operator.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin=SEALED)
    return {"an identity": path.read_text().splitlines()[-1], "a sealed secret": SEALED}


def opened() -> bool:
    """Whether the pod has the secret in its environment and in a file."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        folder = re.search(rb"FARMD_SECRETS=([^\0]+)", environ)
        if folder is not None and f"KEY={SEALED}".encode() in environ.split(b"\0"):
            return Path(folder[1].decode(), "db").read_text() == SEALED
    return False


def page(url: str, token: str, planted: Planted, heard: Heard) -> None:
    """All that a farm's HTTP tells to an operator."""
    context = caller(planted.folder)
    lists = (
        "controllers",
        "rollouts",
        "deployments",
        "nodes",
        "daemonsets",
        "jobs",
        "apps",
        "services",
        "farms",
    )
    items = ("controllers/hello", "jobs/bert", "services/shop", "nodes/node-1", "controllers/hello/explain")
    free = ("metrics", "health", "ready", "v1/status", "signin")
    paths = [*free, "", "audit", "v1/audit", "v1/openapi.json", "v1/none", "none", *lists, *items]
    for path in [*paths, *(f"v1/{each}" for each in (*lists, *items))]:
        for accept, bearer in (("text/html", token), ("application/json", f"{token}x")):
            headers = {"Authorization": f"Bearer {bearer}", "Accept": accept}
            request = urllib.request.Request(f"{url}/{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=LIMIT, context=context) as answer:
                    heard.add(f"page /{path}", f"{answer.headers}\n{answer.read().decode()}")
            except urllib.error.HTTPError as error:
                with error:
                    heard.add(f"page /{path}", f"{error.headers}\n{error.read().decode()}")


def agents_page(url: str, token: str, planted: Planted, heard: Heard) -> None:
    """All that an agent's HTTP tells to an operator but pods' own output."""
    context, bearer = caller(planted.folder), {"Authorization": f"Bearer {token}"}
    for path in ("metrics", "health", "ready", "v1/status", "v1/pods"):
        request = urllib.request.Request(f"{url}/{path}", headers=bearer)
        with urllib.request.urlopen(request, timeout=LIMIT, context=context) as answer:
            heard.add(f"agent /{path}", answer.read().decode())


def person(guarded: Guarded, config: Path, **variables: str) -> AsRole:
    """An operator on a machine that has the configuration of a farm."""
    known = {"FARMD_CONFIG": str(config), "HOOK_SECRET": NAMED, **variables}
    return replace(guarded.farmctl("operator"), variables=known)


def bundle(guarded: Guarded, config: Path, planted: Planted, heard: Heard) -> None:
    """The archive for somebody who helps."""
    path = planted.folder / "bundle.tar.gz"
    operator = person(guarded, config, FARMCTL_CACERT=str(planted.folder / "ca.pem"))
    operator.ok("debug", "bundle", str(path))
    with tarfile.open(path) as archive:
        parts = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        assert {"bundle/farmd.toml", "bundle/farms/farm-1/metrics"} <= parts.keys()
        heard.add("debug bundle", "\n".join(part.read().decode() for part in parts.values() if part))


def settings(config: Path, folder: Path, heard: Heard) -> None:
    """What is shown of a configuration."""
    known = {"FARMD_CONFIG": str(config), "HOOK_SECRET": NAMED}
    with Program("check-config", "--print", folder=folder, **known) as printed:
        printed.ends()
        heard.add("check-config --print", printed.text)
    loaded, every = load(config, known), [f"{section}.{key.name}" for section, key in every_key()]
    explained = [line for key in every for line in sources.explained(loaded, key)]
    heard.add("check-config --explain", "\n".join(explained))


def on_this_machine(guarded: Guarded, config: Path, folder: Path, heard: Heard) -> None:
    """What commands say that use the configuration or are given a wrong credential, and an export."""
    operator = person(guarded, config)
    for sink in ("webhook", "pagerduty", "slack", "alertmanager", "of-env"):
        done = operator("alert", "test", sink)
        assert done.code == 9, done
        heard.add(f"alert test {sink}", done.err)
    done = person(guarded, config, CONSUL_HTTP_ADDR=f"http://user:{canary('auth')}@127.0.0.1:1")("rc", "list")
    assert done.code == 2, done
    heard.add("a refused address", done.err)
    operator.ok("export", str(folder / "export"))
    text = "".join(each.read_text() for each in (folder / "export").iterdir())
    for secret in (WORKLOAD, PARAMETER, HOOK):  # what people said of the fleet, for its owner alone
        text = text.replace(secret, "by design")
    heard.add("export", text)


async def shop(client: ConsulClient) -> None:
    """A service with a hook whose environment holds a secret."""
    hook = Hook(command=["migrate"], env={"TOKEN": HOOK})
    service = Service(
        id="ab" * 16, name="shop", mode="replicated", version=Version(manifest="m", pre_deploy=hook)
    )
    await client.transaction(ServiceStore(client, Keys()).create(service))


def test_no_secret_of_any_input_is_told_anywhere(guarded: Guarded, tmp_path: Path) -> None:
    authority(tmp_path)
    issue(tmp_path, "farm", "DNS:localhost,IP:127.0.0.1")
    planted, heard = Planted(tmp_path), Heard()
    configs = [tmp_path / "farm.toml", tmp_path / "agent.toml"]
    for path, left in zip(configs, TWO_CREDENTIALS, strict=True):
        path.write_text(configuration(planted, guarded, left))
    inputs = planted.secrets | {
        "env of a pod": WORKLOAD,
        "env of a job's pod": PARAMETER,
        "env of a hook": HOOK,
    }
    inputs |= {"operator's token": guarded.token_file("operator").read_text().strip()}
    inputs |= {"agent's token": guarded.token_file(f"agent-{NODES[0]}").read_text().strip()}
    operator = guarded.farmctl("operator")
    with stopped_at_the_end() as running:
        roles = (("run", "farm"), ("agent", f"agent-{NODES[0]}"))
        for (role, name), config in zip(roles, configs, strict=True):
            known = {
                "FARMD_CONFIG": str(config),
                "CONSUL_HTTP_ADDR": guarded.server.address,
                "CONSUL_HTTP_TOKEN_FILE": str(guarded.token_file(name)),
                "CONSUL_HTTP_AUTH": f"user:{canary('auth')}",
                "FARMD_AGENT__STATE_DIR": str(tmp_path / "state"),
                "FARMD_AGENT__STOP_WORKLOADS_ON_EXIT": "true",
                "FARMD_AGENT__NODE": NODES[0],
                "FARMD_AGENT__SHARE_USER": "true",
                "FARMD_FARM__NAME": "farm-1",
                "FARMD_AGENT__SECRET_IDENTITIES": f'["{tmp_path}/node.key"]',
                "HOOK_SECRET": NAMED,
            }
            running.append(Program(role, "--port", "0", folder=tmp_path, **known))
        inputs["CONSUL_HTTP_AUTH"] = canary("auth")
        ports = [each.wait_for("web.listening")["port"] for each in running]
        for each in running:
            each.wait_for("process.ready")
        inputs |= seal(operator, tmp_path / "node.key")
        operator.ok("rc", "create", "-f", "-", "--wait", "--timeout", "150s", stdin=HELLO)
        operator.ok("job", "run", "-f", "-", "--param", f"key={PARAMETER}", stdin=BERT)
        assert opened()
        asked(guarded, shop, "operator")
        eventually("the job's pod", lambda: "bert" in operator.ok("pod", "list").out)

        for line in LOOKS:
            for output in ("wide", "json"):
                done = operator(*line.split(), "-o", output)
                heard.add(f"farmctl {line}", f"{done.out}\n{done.err}")
        changed = HELLO.replace("replicas: 1", "replicas: 2").replace(WORKLOAD, f"{WORKLOAD}more")
        done = operator("rc", "diff", "-f", "-", stdin=changed)
        heard.add("farmctl rc diff", f"{done.out}\n{done.err}")
        planned = f"{{apiVersion: farmd/v1, kind: rc, {changed.removeprefix('{')}"
        words = "apply -f - --app planned --dry-run --adopt rc/hello"
        done = operator(*words.split(), stdin=planned)
        assert done.code in (0, 3), done
        heard.add("farmctl apply --dry-run", f"{done.out}\n{done.err}")
        token = planted.secrets["web.tokens"]
        page(f"https://localhost:{ports[0]}", token, planted, heard)
        agents_page(f"https://localhost:{ports[1]}", token, planted, heard)
        bundle(guarded, configs[0], planted, heard)
    for each in running:
        each.tail()
        heard.add(f"log of {each.process.pid}", each.text)
    for config in configs:
        settings(config, tmp_path, heard)
    on_this_machine(guarded, configs[0], tmp_path, heard)

    told = {name: found for name, secret in inputs.items() if (found := heard.tells(secret))}
    assert told == OWN_MACHINE, "\n".join(f"{name}: {where}" for name, where in told.items())
    stored = Heard({key: entry.value.decode() for key, entry in world(guarded).items()})
    families = {name: {key.split("/")[1] for key in stored.tells(secret)} for name, secret in inputs.items()}
    by_design = {
        "env of a pod": {"manifests"},
        "env of a job's pod": {"manifests"},
        "env of a hook": {"services"},
    }
    assert {name: found for name, found in families.items() if found} == by_design
