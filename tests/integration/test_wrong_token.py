"""A farm or an agent whose token may not do its work is not ready, says which keys, and is so once it may."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from farmd.process.permissions import METRIC
from tests.credentials import mend
from tests.guarded import NODES, Guarded, asked, guarded_consul, registered
from tests.processes import NotifySocket, Program, eventually, get

pytestmark = pytest.mark.xdist_group("access")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=False) as made:
        asked(made, lambda client: client.delete("", recurse=True))
        registered(made)
        yield made


@pytest.mark.parametrize(
    ("program", "wrong", "right", "key", "policy"),
    [
        ("run", f"agent-{NODES[0]}", "farm", "farmd/farms/", "acl/farm.hcl"),
        ("run", "reader", "farm", "farmd/locks/", "acl/farm.hcl"),
        ("agent", "farm", f"agent-{NODES[0]}", f"/{NODES[0]}/", "acl/agent.hcl"),
    ],
)
def test_a_process_with_the_token_of_another_role_says_so_and_is_ready_with_its_own(
    guarded: Guarded, tmp_path: Path, program: str, wrong: str, right: str, key: str, policy: str
) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(guarded.token_file(wrong).read_text())
    variables = {
        "CONSUL_HTTP_ADDR": guarded.server.address,
        "CONSUL_HTTP_TOKEN_FILE": str(token),
        "FARMD_AGENT__STATE_DIR": str(tmp_path / "state"),
        "FARMD_AGENT__NODE": NODES[0],
        "FARMD_FARM__NAME": "f1",
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
    }
    with (
        NotifySocket(tmp_path / "notify") as systemd,
        Program(program, "--port", "0", folder=tmp_path, **variables) as made,
    ):
        url = f"http://127.0.0.1:{made.wait_for('web.listening')['port']}"
        assert "may not write" in made.wait_for("token.denied")["reason"]
        eventually("a process that is not ready for its token", lambda: get(f"{url}/ready")[0] == 503)
        told = json.loads(get(f"{url}/ready")[1])["reason"]
        assert told.startswith("Consul's token: may not write")
        assert key in told
        assert policy in told
        eventually(
            "systemd's status", lambda: "may not write" in systemd.wait_for("STATUS").get("STATUS", "")
        )
        metrics = get(f"{url}/metrics")[1]
        assert f"\n{METRIC} 1.0" in metrics
        assert 'farmd_store_requests_total{code="403",op="transaction"}' in metrics
        mend(token, guarded.token_file(right).read_text())
        made.wait_for("token.permitted")
        made.wait_for("process.ready")
        assert f"\n{METRIC} 0.0" in get(f"{url}/metrics")[1]


def test_a_farm_names_each_tree_that_its_token_may_not_write_and_that_it_may_not_read(
    guarded: Guarded, tmp_path: Path
) -> None:
    rules = (Path(__file__).parents[2] / "acl" / "farm.hcl").read_text()
    trees = re.findall(r'key_prefix "(farmd/\w+/)" { policy = "write" }', rules)
    assert len(trees) > 20
    guarded.shell(
        'echo \'session_prefix "" { policy = "write" } key_prefix "farmd/farms/" { policy = "write" }\''
        " | consul acl policy create -name farms-alone -rules -"
    )
    guarded.new_token("bare", "farms-alone")
    variables = {
        "CONSUL_HTTP_ADDR": guarded.server.address,
        "CONSUL_HTTP_TOKEN_FILE": str(guarded.token_file("bare")),
        "FARMD_FARM__NAME": "f3",
    }
    with Program("run", "--port", "0", folder=tmp_path, **variables) as made:
        url = f"http://127.0.0.1:{made.wait_for('web.listening')['port']}"
        made.wait_for("token.denied")
        told = json.loads(get(f"{url}/ready")[1])["reason"]  # a log cuts long texts
    writes, _, reads = told.partition(" and may not read ")
    named = writes.removeprefix("Consul's token: may not write ").split(", ")
    assert set(named) == set(trees) - {"farmd/farms/"}
    assert reads.startswith("farmd/reality/")


@pytest.mark.parametrize(
    ("program", "rules", "lost", "named"),
    [
        ("run", "cat acl/farm.hcl", "pods", "farms/f2"),
        ("agent", f"consul acl policy read -name farmd-agent-{NODES[1]}", "reality", f"nodes/{NODES[1]}"),
    ],
)
def test_the_doctor_names_who_is_there_with_a_token_that_lacks_rights(
    guarded: Guarded, tmp_path: Path, program: str, rules: str, lost: str, named: str
) -> None:
    guarded.shell(
        f"{rules} | grep -E '^ *(key|session)' | grep -v farmd/{lost}/ |"
        f" consul acl policy create -name lacks-{lost} -rules -"
    )
    guarded.new_token("lacking", f"lacks-{lost}")
    variables = {
        "CONSUL_HTTP_ADDR": guarded.server.address,
        "CONSUL_HTTP_TOKEN_FILE": str(guarded.token_file("lacking")),
        "FARMD_AGENT__STATE_DIR": str(tmp_path / "state"),
        "FARMD_AGENT__NODE": NODES[1],
        "FARMD_FARM__NAME": "f2",
    }

    def denied() -> dict[str, str]:
        found = guarded.farmctl("operator")("doctor", "-o", "json").json["items"]
        return {each["object"]: each["explanation"] for each in found if each["code"] == "token-denied"}

    with Program(program, "--port", "0", folder=tmp_path, **variables):
        eventually("the doctor names it", lambda: f"may not write farmd/{lost}/" in denied().get(named, ""))
        lacking = f"lacks-{lost}"
        guarded.shell(
            f"{rules} | grep -E '^ *(key|session)' | consul acl policy update -name {lacking} -rules -"
        )
        eventually("the doctor names nobody", lambda: denied() == {})
