"""R32: people sign before a change, and a change that nodes would refuse is refused before it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from farmd.commands import signing as signing_commands
from farmd.commands.mutation import Call
from farmd.deploy.manifest import of_hook
from farmd.signing import keys as signing
from store import signatures
from store.deployments import Deployment
from store.errors import Conflict, Locked
from store.jobs import Job
from store.keys import Keys
from store.manifests import Manifest, canonical, digest
from store.nodes import Agent
from store.rcs import ReplicationController
from store.revocations import NOTHING
from store.services import Hook
from store.signatures import Signature
from tests.deploying import kept, machines, stands, write
from tests.farmctl import Farmctl
from tests.integration.test_service_commands import spec
from tests.people import hello

HELLO = yaml.safe_dump(hello())
NEWER = yaml.safe_dump(hello(pod_command=["sleep", "10"]))
SUM = "name: sum\ntypes:\n- {name: worker, replicas: 2, pod: {id: sum, command: [/bin/true]}}\n"
SHOP = """
name: shop
services:
  web:
    image: registry.example/web:1.5
    x-pre_deploy: rails db:migrate
"""


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    """Two machines, one of which starts only what is signed."""
    made = machines(address, "m1", "m2")
    made.inside = True
    features = ["runtime.container", "jobs.1", "signatures.enforce"]
    write(made, Keys(made.prefix).agent("m2"), Agent(node="m2", version="1", features=features))
    return made


@pytest.fixture
def key(tmp_path: Path, farmctl: Farmctl) -> str:
    path = tmp_path / "alice.key"
    public = farmctl.ok("manifest", "keygen", str(path)).out.strip()
    (tmp_path / "trust").write_text(f"alice {public} rcs/*,jobs/* *\n")
    return str(path)


def signed(farmctl: Farmctl) -> dict[str, str]:
    """The digests by owner, of genuine signatures."""
    found = kept(farmctl, "signatures", Signature)
    assert all(map(signing.genuine, found))
    return {each.statement.owner: each.statement.digest for each in found}


def test_a_change_that_nobody_signed_is_refused_before_it_is_written(farmctl: Farmctl, key: str) -> None:
    refused = farmctl("rc", "create", "-f", "-", stdin=HELLO)
    assert refused.code == 5
    assert "is not signed for rcs/hello; signatures are enforced by m2" in refused.err
    assert "hint: --sign KEYFILE signs it" in refused.err
    assert kept(farmctl, "rcs", None) == []
    farmctl.ok("rc", "create", "-f", "-", "--sign", key, stdin=HELLO)
    [rc] = kept(farmctl, "rcs", ReplicationController)
    assert signed(farmctl) == {"rcs/hello": rc.manifest}
    farmctl.ok("rc", "set-replicas", "hello", "5")
    farmctl.ok("rc", "update", "-f", "-", "-y", stdin=HELLO)  # it is the same manifest
    for command in (["update", "-f", "-"], ["update", "-f", "-", "--now", "-y"]):
        assert farmctl("rc", *command, stdin=NEWER).code == 5


def test_a_rollout_is_signed_for_the_name_that_stays(farmctl: Farmctl, key: str) -> None:
    farmctl.ok("rc", "create", "-f", "-", "--sign", key, stdin=HELLO)
    farmctl.ok("rc", "update", "-f", "-", "--sign", key, "--no-wait", stdin=NEWER)
    news = [rc for rc in kept(farmctl, "rcs", ReplicationController) if rc.name != "hello"]
    assert {each.statement.owner for each in kept(farmctl, "signatures", Signature)} == {"rcs/hello"}
    assert news[0].manifest in {each.statement.digest for each in kept(farmctl, "signatures", Signature)}


def test_what_is_signed_ahead_needs_no_key_at_the_change(farmctl: Farmctl, key: str) -> None:
    told = farmctl.ok("manifest", "sign", "rc", "-f", "-", "--key", key, "--for", "1d", stdin=HELLO)
    assert "signed" in told.out
    [one] = kept(farmctl, "signatures", Signature)
    assert one.statement.ends - one.statement.begins == 86_400
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    actions = [item["action"] for item in farmctl.ok("audit", "list", "-o", "json").json["items"]]
    assert actions == ["rc.create", "manifest.sign"]


def test_a_signature_by_a_key_that_no_node_trusts_for_the_owner_is_as_none(
    farmctl: Farmctl, key: str
) -> None:
    farmctl.ok("manifest", "sign", "rc", "-f", "-", "--key", key, stdin=HELLO)
    [one] = kept(farmctl, "signatures", Signature)
    features = ["runtime.container", "jobs.1", "signatures.enforce"]
    said = "manifest .* is signed for rcs/hello by key .*, which none of m2 trusts for it"
    for trusts in ({}, {"0" * 16: ["*"]}, {one.key_id: ["jobs/*"]}):
        agent = Agent(node="m2", version="1", features=features, trusts=trusts)
        write(farmctl, Keys(farmctl.prefix).agent("m2"), agent)
        refused = farmctl("rc", "create", "-f", "-", stdin=HELLO)
        assert refused.code == 5
        assert re.search(said, refused.err), refused.err
    agent = Agent(node="m2", version="1", features=features, trusts={one.key_id: ["rcs/h*"]})
    write(farmctl, Keys(farmctl.prefix).agent("m2"), agent)
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)


def test_many_changes_ask_once_which_nodes_enforce_signatures(
    farmctl: Farmctl, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, enforcing = list[list[str]](), signing_commands.enforcing

    async def counted(call: Call) -> list[Agent]:
        found = await enforcing(call)
        asked.append([agent.node for agent in found])
        return found

    both = f"{HELLO}---\n{HELLO.replace('name: hello', 'name: other')}"
    farmctl.ok("manifest", "sign", "rc", "-f", "-", "--key", key, stdin=both)
    monkeypatch.setattr(signing_commands, "enforcing", counted)
    farmctl.ok("rc", "create", "-f", "-", stdin=both)
    assert (signed(farmctl).keys(), asked) == ({"rcs/hello", "rcs/other"}, [["m2"]])


def test_a_signature_has_its_manifest_beside_it_also_if_the_change_comes_to_nothing(
    farmctl: Farmctl, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signatures are collected with their manifests, so one without would stay for ever."""

    async def fails(*_: object) -> None:
        raise Conflict("somebody was faster")

    monkeypatch.setattr("farmd.cli.changes._write", fails)
    assert farmctl("rc", "create", "-f", "-", "--sign", key, stdin=HELLO).code == 5
    [(sha, _)] = kept(farmctl, "manifests", None)
    assert signed(farmctl) == {"rcs/hello": sha}


def test_a_job_is_signed_under_its_own_name(farmctl: Farmctl, key: str) -> None:
    assert farmctl("job", "run", "-f", "-", stdin=SUM).code == 5
    farmctl.ok("job", "run", "-f", "-", "--name", "sum-1", "--sign", key, stdin=SUM)
    [job] = kept(farmctl, "jobs", Job)
    assert signed(farmctl) == {"jobs/sum-1": job.manifests[0]}


def test_a_deployment_is_signed_with_its_hooks(farmctl: Farmctl, key: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(SHOP)
    deploy = ("deploy", "-f", str(tmp_path / "compose.yaml"), "-y", "--no-wait")
    assert farmctl(*deploy).code == 5
    assert kept(farmctl, "deployments", None) == []
    farmctl.ok(*deploy, "--sign", key)
    [deployment] = kept(farmctl, "deployments", Deployment)
    version = deployment.goals[0].wanted
    assert version is not None
    assert version.pre_deploy is not None
    bodies = {digest(canonical(each)): each for each in kept(farmctl, "manifests", Manifest)}
    hook = digest(canonical(of_hook(bodies[version.manifest], version.pre_deploy)))
    assert signed(farmctl) == {"rcs/svc-web": version.manifest, "services/web": hook}
    assert (version.hook_manifest, bodies.keys()) == (hook, {version.manifest, hook})


def test_signatures_of_a_deployment_have_their_manifests_beside_them_also_if_it_comes_to_nothing(
    farmctl: Farmctl, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise Locked("somebody was faster")

    monkeypatch.setattr("farmd.deploy.submission.submit", fails)
    (tmp_path / "compose.yaml").write_text(SHOP)
    assert farmctl("deploy", "-f", str(tmp_path / "compose.yaml"), "-y", "--sign", key).code == 5
    made = signed(farmctl)
    assert made.keys() == {"rcs/svc-web", "services/web"}
    assert {sha for sha, _ in kept(farmctl, "manifests", None)} == set(made.values())


def test_a_deployment_that_starts_nothing_needs_no_signature(farmctl: Farmctl, key: str) -> None:
    """A signature goes a day after its manifest is used no more; to run fewer pods nobody needs it."""
    hook = Hook(command=["migrate"])
    stands(farmctl, spec(pre_deploy=hook), "m1", "m2")
    scale = ("service", "scale", "web", "-y", "--no-wait")
    assert farmctl(*scale, "3").code == 5
    farmctl.ok(*scale, "1")
    assert signed(farmctl) == {}


def test_an_app_is_signed_object_by_object(farmctl: Farmctl, key: str, tmp_path: Path) -> None:
    text = f"apiVersion: farmd/v1\nkind: rc\n{HELLO}---\napiVersion: farmd/v1\nkind: job\n{SUM}"
    (tmp_path / "app.yaml").write_text(text)
    apply = ("apply", "-f", str(tmp_path / "app.yaml"), "--app", "shop", "-y", "--no-wait")
    assert farmctl(*apply).code == 5
    assert kept(farmctl, "apps", None) == []
    farmctl.ok(*apply, "--sign", key)
    assert signed(farmctl).keys() == {"rcs/hello", "jobs/sum"}


def test_verify_says_what_each_signature_is_worth(farmctl: Farmctl, key: str, tmp_path: Path) -> None:
    farmctl.ok("rc", "create", "-f", "-", "--sign", key, stdin=HELLO)
    assert " rc/hello: good by key " in farmctl.ok("manifest", "verify", "rc/hello").out
    trust = str(tmp_path / "trust")
    assert "trusted as alice" in farmctl.ok("manifest", "verify", "rc/hello", "--trust", trust).out
    (tmp_path / "trust").write_text("")
    assert farmctl("manifest", "verify", "rc/hello", "--trust", trust).code == 1
    [one] = kept(farmctl, "signatures", Signature)
    place = Keys(farmctl.prefix).signature(one.statement.digest, one.key_id, one.statement.owner)
    write(farmctl, place, replace(one, signature="00" * 64))
    found = farmctl("manifest", "verify", "rc/hello")
    assert (found.code, " rc/hello: false by key " in found.out) == (1, True)
    refused = farmctl("manifest", "verify", "rc/hello", "-o", "json")
    assert [item["result"] for item in refused.json["items"]] == ["false", "no valid signature"]


def test_a_signature_that_begins_later_counts_for_farmctl_as_little_as_for_nodes(
    farmctl: Farmctl, key: str
) -> None:
    farmctl.ok("rc", "create", "-f", "-", "--sign", key, stdin=HELLO)
    [one] = kept(farmctl, "signatures", Signature)
    said = replace(one.statement, begins=one.statement.begins + 3600)
    place = Keys(farmctl.prefix).signature(said.digest, one.key_id, said.owner)
    write(farmctl, place, signing.sign(signing.load(Path(key)), said))
    found = farmctl("manifest", "verify", "rc/hello")
    assert (found.code, " rc/hello: begins later by key " in found.out) == (1, True)


def current(farmctl: Farmctl) -> None:
    """Let the enforcing machine have an agent that knows signatures which name the cluster."""
    features = ["runtime.container", "jobs.1", "signatures.enforce", "signatures.2"]
    write(farmctl, Keys(farmctl.prefix).agent("m2"), Agent(node="m2", version="2", features=features))


def test_a_signature_names_the_cluster_unless_an_agent_is_older_than_that(farmctl: Farmctl, key: str) -> None:
    sign = ("manifest", "sign", "rc", "-f", "-", "--key", key)
    told = farmctl.ok(*sign, stdin=HELLO)
    assert "warning: the agents of m2 are older than signatures that name the cluster" in told.err
    assert [each.statement.cluster for each in kept(farmctl, "signatures", Signature)] == [""]
    current(farmctl)
    told = farmctl.ok(*sign, stdin=HELLO)
    assert "warning" not in told.err
    [cluster] = [json.loads(value) for key, value in kept(farmctl, "meta", None) if key == "cluster"]
    assert [each.statement.cluster for each in kept(farmctl, "signatures", Signature)] == [cluster]
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)


def test_people_say_which_nodes_enforce_and_no_agent_alone(farmctl: Farmctl, key: str) -> None:
    """Else one agent that lies would let everybody's changes be refused."""
    refused = farmctl("rc", "create", "-f", "-", stdin=HELLO)
    assert (refused.code, "farmctl node set NODE --signatures none" in refused.err) == (5, True)
    farmctl.ok("node", "set", "m2", "--signatures", "none")
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    farmctl.ok("node", "set", "m1", "--signatures", "enforce", "--address", "10.0.0.7")
    refused = farmctl("rc", "update", "-f", "-", "--now", "-y", stdin=NEWER)
    assert (refused.code, "signatures are enforced by m1" in refused.err) == (5, True)
    told = farmctl.ok("node", "describe", "m1").out
    assert "Root by" in told
    assert "10.0.0.7" in told or "Address" in told
    assert "a farm's token is root on" in farmctl("doctor", "-o", "json").json["facts"]
    farmctl.ok("node", "set", "m1", "--signatures", "", "--address", "")
    farmctl.ok("rc", "update", "-f", "-", "--now", "-y", stdin=NEWER)
    for wrong in (["--address", "http://x"], []):
        assert farmctl("node", "set", "m1", *wrong).code == 2


def test_what_lies_in_the_store_is_signed_only_by_its_digest_or_by_a_person_who_saw_it(
    farmctl: Farmctl, key: str
) -> None:
    """Whoever steals a farm's token puts another manifest there, and waits for a signature."""
    current(farmctl)
    farmctl.ok("rc", "create", "-f", "-", "--sign", key, stdin=HELLO)
    evil = yaml.safe_load(HELLO)
    evil["pod"]["env"] = {"LD_PRELOAD": "/tmp/x.so"}
    thief = str(Path(key).with_name("thief.key"))
    farmctl.ok("manifest", "keygen", thief)
    farmctl.ok("manifest", "sign", "rc", "-f", "-", "--key", thief, stdin=yaml.safe_dump(evil))
    [old] = kept(farmctl, "rcs", ReplicationController)
    [bad] = {sha for sha, _ in kept(farmctl, "manifests", None)} - {old.manifest}
    write(farmctl, Keys(farmctl.prefix).record("rcs", old.id), replace(old, manifest=bad))
    sign = ("manifest", "sign", "rc/hello", "--key", key)
    for more in ([], ["-y"], ["-q", "-y"]):
        refused = farmctl(*sign, *more)
        assert (refused.code, "there is no terminal to confirm it on" in refused.err) == (2, True)
        assert re.search(r"^  \+  LD_PRELOAD: /tmp/x.so$", refused.err, re.MULTILINE), refused.err
        assert f"--digest {bad}" in refused.err
    refused = farmctl(*sign, "--digest", old.manifest)
    assert (refused.code, f"expected what rc/hello has: {bad}" in refused.err) == (2, True)
    declined = farmctl.on_terminal(*sign, answer="n\n")
    assert (declined.code, "LD_PRELOAD" in declined.out) == (10, True)
    assert [
        each.key_id for each in kept(farmctl, "signatures", Signature) if each.statement.digest == bad
    ] == [signatures.key_id(signing.public_of(signing.load(Path(thief))))]
    assert farmctl.on_terminal(*sign, answer="y\n").code == 0
    again = farmctl.ok(*sign)
    assert "this key signed it before" in again.err


def test_what_a_command_takes_from_the_store_is_not_signed_unseen(farmctl: Farmctl, key: str) -> None:
    current(farmctl)
    stands(farmctl, spec(), "m1")
    scale = ("service", "scale", "web", "3", "-y", "--no-wait", "--sign", key)
    refused = farmctl(*scale)
    assert (refused.code, "comes from the store and was not reviewed" in refused.err) == (2, True)
    assert kept(farmctl, "deployments", None) == []
    [sha] = {sha for sha, _ in kept(farmctl, "manifests", None)}
    farmctl.ok("manifest", "sign", "service/web", "--digest", sha, "--key", key)
    farmctl.ok(*scale)


def test_a_revoked_signature_holds_nowhere_until_somebody_signs_again(farmctl: Farmctl, key: str) -> None:
    current(farmctl)
    farmctl.ok("rc", "create", "-f", "-", "--sign", key, stdin=HELLO)
    saved = kept(farmctl, "signatures", Signature)
    assert farmctl("manifest", "revoke", "rc/hello").code == 2  # it asks
    farmctl.ok("manifest", "revoke", "rc/hello", "-y", "--reason", "CVE-1")
    found = farmctl("manifest", "verify", "rc/hello")
    assert (found.code, " rc/hello: revoked by key " in found.out) == (1, True)
    refused = farmctl("rc", "update", "-f", "-", "--now", "-y", stdin=NEWER)
    assert refused.code == 5
    assert "unsigned" in {each["code"] for each in farmctl("doctor", "-o", "json").json["items"]}
    [audit] = [
        item for item in farmctl.ok("audit", "list", "-o", "json").json["items"]
        if item["action"] == "manifest.revoke"
    ]  # fmt: skip
    assert (audit["reason"], audit["after"]["owner"]) == ("CVE-1", "rcs/hello")
    farmctl.ok("manifest", "sign", "rc", "-f", "-", "--key", key, stdin=HELLO)
    newer = [each for each in kept(farmctl, "signatures", Signature) if each.key]
    assert [each.statement.begins > saved[0].statement.begins for each in newer] == [True]
    assert signing_commands.flaw(newer[0], 1.8e9, newer[0].statement.cluster, NOTHING) in {"", "begins later"}
    digest_ = newer[0].statement.digest
    farmctl.ok("manifest", "revoke", "rc/gone", "--digest", digest_, "-y")  # an owner that is not there
    bad = farmctl("manifest", "revoke", "rc/hello", "--digest", "abc", "-y")
    assert (bad.code, "digest: found 'abc', expected 64 hex digits" in bad.err) == (2, True)


def test_signatures_are_exported_and_those_of_version_1_hold_in_another_cluster(
    farmctl: Farmctl, key: str, tmp_path: Path
) -> None:
    farmctl.ok("rc", "create", "-f", "-", "--sign", key, stdin=HELLO)
    farmctl.ok("export", str(tmp_path / "fleet"))
    again = (tmp_path / "fleet" / "signatures.txt").read_text()
    farmctl.ok("export", str(tmp_path / "fleet"))
    assert (tmp_path / "fleet" / "signatures.txt").read_text() == again
    other = machines(farmctl.address, "m1")
    other.inside = True
    write(
        other, Keys(other.prefix).agent("m1"), Agent(node="m1", version="1", features=["signatures.enforce"])
    )
    assert other("import", str(tmp_path / "fleet" / "rc.yaml")).code == 5
    other.ok("manifest", "restore", str(tmp_path / "fleet" / "signatures.txt"))
    other.ok("import", str(tmp_path / "fleet"))
    assert signed(other) == signed(farmctl)
    bad = other("manifest", "restore", "-", stdin='{"statement": 1}')
    assert (bad.code, "stdin: line 1: found " in bad.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["sign", "rc/hello", "--key", "/nowhere"], "key: found '/nowhere' (No such file or directory)"),
        (["sign", "node/m1", "--key", "{key}"], "'node': found no noun with pods, expected rc, "),
        (["sign", "rc", "--key", "{key}"], "'rc': expected NOUN/NAME, such as rc/hello"),
        (["sign", "rc/x", "--key", "{key}", "-f", "-"], "-f: found 'rc/x' beside it, expected rc alone"),
        (["sign", "rc", "--key", "{key}", "-f", "-", "--for", "500d"], "ends: found 43200000 s, expected"),
        (["keygen", "{key}"], "expected a new one"),
        (["verify", "rc/hello", "--node", "m1"], "--node: found no --trust beside it"),
        (["verify", "rc/none"], "rc 'none' does not exist"),
    ],
)  # fmt: skip
def test_wrong_input_gets_one_line(farmctl: Farmctl, key: str, arguments: list[str], error: str) -> None:
    result = farmctl("manifest", *(each.format(key=key) for each in arguments), stdin=HELLO)
    assert result.code != 0
    assert error in result.err
    assert kept(farmctl, "signatures", None) == []
