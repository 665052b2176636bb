"""The configuration: order of its places, origins, one clear line a mistake, what a reload may change."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from farmd.agent.environment import environment
from farmd.agent.users import Account
from farmd.config import sources as config_report
from farmd.config import sources as config_sources
from farmd.config.sources import ConfigInvalid, changes, load
from store.manifests import Manifest, Port

DOCS = Path(__file__).resolve().parents[3] / "docs/configuration.md"


@pytest.fixture(autouse=True)
def _no_file_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(config_sources, "DEFAULT_PATH", tmp_path / "none/farmd.toml")


def sinks(kind: str, **keys: object) -> str:
    """A sink of a type, with these keys."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    return "\n".join(["[[alerts.sinks]]", f"type = '{kind}'", *lines, ""])


def written(folder: Path, text: str, name: str = "farmd.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def mistakes(path: Path | None = None, env: dict[str, str] | None = None, flags=None) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        load(path, env or {}, flags)
    return caught.value.lines


def test_later_places_win_and_the_origin_is_known(tmp_path):
    main = written(tmp_path, '[farm]\nname = "one"\nttl = 11\nselector = "a=b"\n[log]\nlevel = "error"\n')
    written(tmp_path, "[farm]\nttl = 12\n", "conf.d/10.toml")
    written(tmp_path, "[farm]\nttl = 13\n", "conf.d/20.toml")
    env = {"FARMD_FARM__SELECTOR": "c=d", "FARMD_LOG__LEVEL": "warning"}
    loaded = load(main, env, {"log": {"level": "debug", "format": None}})
    assert (loaded.config.farm.name, loaded.config.farm.ttl) == ("one", 13)
    assert (loaded.config.farm.selector, loaded.config.log.level) == ("c=d", "debug")
    assert loaded.origin("farm.name") == str(main)
    assert loaded.origin("farm.ttl") == str(tmp_path / "conf.d/20.toml")
    assert loaded.origin("farm.selector") == "environment FARMD_FARM__SELECTOR"
    assert loaded.origin("log.level") == "flag --log-level"
    assert loaded.origin("log.format") == "default"


def test_times_have_units_in_files_and_in_the_environment(tmp_path):
    main = written(tmp_path, '[farm]\nlost_after = "1h30m"\n[scheduler]\ntimeout = "500ms"\n')
    config = load(main, {"FARMD_FARM__DRAIN": "90s", "FARMD_FARM__TTL": "12"}).config
    assert (config.farm.lost_after, config.farm.drain, config.farm.ttl) == (5400.0, 90.0, 12.0)
    assert config.scheduler.timeout == 0.5


@pytest.mark.parametrize(
    ("env", "flags", "expected"),
    [
        ({}, {}, "file:1"),
        ({"CONSUL_HTTP_ADDR": "consul:1"}, {}, "consul:1"),
        ({"CONSUL_HTTP_ADDR": "consul:1", "FARMD_STORE__ADDRESS": "ours:1"}, {}, "ours:1"),
        ({"FARMD_STORE__ADDRESS": "ours:1"}, {"store": {"address": "flag:1"}}, "flag:1"),
    ],
)
def test_consul_is_addressed_as_every_consul_tool_does(tmp_path, env, flags, expected):
    main = written(tmp_path, '[store]\naddress = "file:1"\n')
    assert load(main, env, flags).config.store.address == expected


def test_a_credential_of_systemd_is_the_token_file_and_the_role_s_own_goes_first(tmp_path):
    for name in ("consul-token", "farmd-agent-token"):
        token = written(tmp_path, "secret", name)
        assert load(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).config.store.token_file == str(token)


@pytest.mark.parametrize(
    "env", [{"CREDENTIALS_DIRECTORY": "/" + "d" * 300}, {"FARMD_CONFIG": "/" + "f" * 300}]
)
def test_a_place_that_may_not_be_looked_at_is_a_mistake_in_one_line(env):
    with pytest.raises(ConfigInvalid) as caught:
        load(None, env)
    assert [line.rpartition(": ")[2] for line in caught.value.lines] == ["File name too long"]


def test_text_of_the_environment_stands_for_lists_and_tables():
    env = {
        "FARMD_FARM__KINDS": "rcs, nodes",
        "FARMD_AGENT__LABELS": "zone=a,Rack=B",
        "FARMD_WEB__FARM_PORT": "0",
    }
    config = load(None, env).config
    assert config.farm.kinds == ["rcs", "nodes"]
    assert config.agent.labels == {"zone": "a", "Rack": "B"}
    assert config.web.farm_port == 0
    assert load(None, {"FARMD_AGENT__LABELS": '{"a":"b"}'}).config.agent.labels == {"a": "b"}


@pytest.mark.parametrize(("text", "meant"), [("yes", True), ("ON", True), ("1", True), ("off", False)])
def test_text_of_the_environment_stands_for_a_truth(text, meant):
    assert (
        load(None, {"FARMD_AGENT__STOP_WORKLOADS_ON_EXIT": text}).config.agent.stop_workloads_on_exit is meant
    )


def test_farmd_may_be_a_workload_of_an_agent():
    manifest = Manifest(id="farmd", command=["farmd"], ports={"http-admin": Port()})
    variables = environment(
        manifest, Account("nobody", 65534, 65534, ()), {}, "n1", "farmd", {"http-admin": 7}
    )
    assert variables["FARMD_PORT_HTTP_ADMIN"] == "7"
    load(None, variables)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[farm]\nselektor = 'a'\n", "farm.selektor: unknown key, did you mean 'selector'?"),
        ("[farmm]\nname = 'a'\n", "[farmm]: unknown section, did you mean 'farm'?"),
        ("farm = 3\n", "farm: found 3, expected a table [farm]"),
        ("[farm]\nttl = 'x'\n", "farm.ttl: found 'x', expected a time such as"),
        ("[farm]\nttl = 5\n", "farm.ttl: found 5, expected a time from 10 to 60 s"),
        ("[farm]\nttl = nan\n", "farm.ttl: found nan, expected a time from 10 to 60 s"),
        ("[farm]\nmax_transfers = 1.5\n", "farm.max_transfers: found 1.5, expected a whole number from 1"),
        ("[farm]\ndrain = true\n", "farm.drain: found true, expected a time from 0 to 3600 s"),
        ("[farm]\nname = 'a/b'\n", "farm.name: found 'a/b', expected 1 to 63 of a-z"),
        ("[farm]\nname = 7\n", "farm.name: found 7, expected text"),
        ("[farm]\nselector = 'a in'\n", "farm.selector: "),
        ("[farm]\nkinds = ['rc']\n", "farm.kinds: found 'rc', did you mean 'rcs'?"),
        ("[farm]\nkinds = []\n", "farm.kinds: found [], expected at least one kind, and each once"),
        ("[farm]\nkinds = ['rcs', 'rcs']\n", "expected at least one kind, and each once"),
        ("[farm]\nkinds = [1]\n", "farm.kinds[0]: found 1, expected text"),
        ("[housekeeping]\ninterval = inf\n", "housekeeping.interval: found inf, expected a time from 1 s"),
        ("[scheduler]\ntimeout = 0\n", "timeout: found 0, expected a time above 0 and at most 60 s"),
        ("[scheduler]\nurl = 'http://h:99999'\n", 'scheduler.url: found "http://h:99999", expected http://'),
        ("[scheduler]\nurl = 'http://u:p@/x'\n", 'scheduler.url: found "http://[hidden]@/x", expected http'),
        (
            "[rollouts]\nprometheus_url = 'prom:9090'\n",
            'rollouts.prometheus_url: found "prom:9090", expected',
        ),
        ("[rollouts]\nprometheus_url = 'http://p/?x'\n", "expected http:// or https:// without a query"),
        ("[rollouts]\nprometheus = 'x'\n", "rollouts.prometheus: unknown key, did you mean"),
        ("[agent]\nnode = '..'\n", "agent.node: found '..', expected"),
        ("[agent]\nstate_dir = 'state'\n", 'agent.state_dir: found "state", expected an absolute path'),
        ("[agent]\nlabels = {'a b' = 'x'}\n", "agent.labels: found 'a b', expected a label key"),
        ("[agent]\nlabels = {zone = 'a b'}\n", "agent.labels.zone: found 'a b', expected"),
        ("[agent]\nlabels = {zone = 1}\n", "agent.labels.zone: found 1, expected text"),
        ("[agent]\nstop_workloads_on_exit = 'x'\n", 'found "x", expected true or false'),
        ("[store]\naddress = 'ftp://x'\n", "store.address: found 'ftp://x', expected host:port"),
        (
            "[store]\naddress = 'http://u:p@x'\n",
            "store.address: found 'http://[hidden]@x', expected host:port",
        ),
        ("[web]\nadvertise = 'http://x:1'\n", 'web.advertise: found "http://x:1", expected a host name'),
        ("[agent]\nport_range = '9-1'\n", 'agent.port_range: found "9-1", expected FIRST-LAST'),
        ("[store]\nprefix = 'farmd'\n", "store.prefix: found \"farmd\", expected names that each end in '/'"),
        (
            "[log]\nlevel = 'loud'\n",
            'log.level: found "loud", expected one of debug, info, warning, error, critical',
        ),
        ("[web]\nfarm_port = 70000\n", "web.farm_port: found 70000, expected a whole number from 0 to 65535"),
        (
            "[[alerts.sinks]]\ntype = 'fax'\n",
            'alerts.sinks[0].type: found "fax", expected one of log, webhook, pagerduty, slack, alertmanager',
        ),
        (
            "[[alerts.sinks]]\ntype = 'log'\nurll = ''\n",
            "alerts.sinks[0].urll: unknown key, did you mean 'url'?",
        ),
        (sinks("webhook", url="x"), 'alerts.sinks[0].url: found "x", expected http:// or https://, a host'),
        (sinks("alertmanager"), 'alerts.sinks[0].url: found "", expected http:// or https://, and a host'),
        (
            sinks("pagerduty"),
            "alerts.sinks[0].secret_file: found nothing, expected a file with the routing key",
        ),
        (
            sinks("slack"),
            "alerts.sinks[0].secret_file: found nothing, expected a file with the webhook's address",
        ),
        (
            sinks("slack", url="https://hooks.slack.com/hunter2"),
            "alerts.sinks[0].url: found an address, expected none: it is a secret",
        ),
        (
            sinks("pagerduty", secret="a", secret_env="B"),
            "alerts.sinks[0].secret_env: found a value beside secret, expected one of",
        ),
        (sinks("log", urgencies=["urgent"]), "alerts.sinks[0].urgencies: found "),
        (sinks("log", selector="a in"), "alerts.sinks[0].selector: "),
        (sinks("log", name="A b"), "alerts.sinks[0].name: "),
        (sinks("log", name="a") * 2, 'alerts.sinks: found the name "a" twice, expected each once'),
        ("[alerts]\nsinks = ['x']\n", "alerts.sinks[0]: found [hidden], expected a table"),
        ("[[alerts.sinks]]\n", "alerts.sinks[0].type: found nothing, expected a value"),
        ("[farm\n", "at line 1"),
    ],
)
def test_each_mistake_is_one_line_with_place_key_found_and_expected(tmp_path, text, line):
    main = written(tmp_path, text)
    (found,) = mistakes(main)
    assert found.startswith(str(main))
    assert line in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            {"FARMD_FARM__NAEM": "x"},
            "environment FARMD_FARM__NAEM: unknown variable, did you mean 'FARMD_FARM__NAME'?",
        ),
        ({"FARMD_FRAM__NAME": "x"}, "environment FARMD_FRAM__NAME: unknown variable, did you mean"),
        (
            {"FARMD_FARM_NAME": "x"},
            "environment FARMD_FARM_NAME: unknown variable, did you mean 'FARMD_FARM__N",
        ),
        ({"FARMD_AGENT__LABELS__ZONE": "x"}, "unknown variable, did you mean 'FARMD_AGENT__LABELS'?"),
        ({"FARMD_ZZZZZZZZZZZZ": "x"}, "unknown variable, expected FARMD_SECTION__KEY"),
        ({"CONSUL_HTTP_ADDR": "ftp://x"}, "environment CONSUL_HTTP_ADDR: store.address: found 'ftp://x'"),
        ({"FARMD_AGENT__LABELS": "zone"}, 'agent.labels: found "zone", expected name=value pairs'),
        ({"FARMD_ALERTS__SINKS": "[{"}, "alerts.sinks: found [hidden], expected a JSON list"),
        ({"FARMD_CONFIG": "/nonexistent/farmd.toml"}, "found no such file, expected a TOML file"),
    ],
)
def test_mistakes_of_the_environment_name_the_variable(env, line):
    (found,) = mistakes(env=env)
    assert line in found


def test_all_mistakes_come_at_once(tmp_path):
    assert len(mistakes(written(tmp_path, "[farm]\nttl = 1\n[web]\nfarm_port = -1\n"))) == 2
    assert len(mistakes(written(tmp_path, "[farm]\nx = 1\n[webb]\n"))) == 2
    unknown_and_wrong = written(tmp_path, "[farm]\nx = 1\nttl = 1\n[web]\nfarm_port = -1\n")
    assert len(mistakes(unknown_and_wrong, {"FARMD_AGENT__LABELS": "zone"})) == 4


@pytest.mark.parametrize(
    "text",
    [
        "[[alerts.sinks]]\ntype = 'webhook'\nsecret = 'hunter2'\nurl = 'x'\n",
        "[[alerts.sinks]]\nsecret = 'hunter2'\n",
        "[[alerts.sinks]]\ntype = 'log'\nsecret = ['hunter2']\n",
        "[alerts]\nsinks = 'hunter2'\n",
    ],
)
def test_no_mistake_shows_a_secret(tmp_path, text):
    assert "hunter2" not in " ".join(mistakes(written(tmp_path, text)))


def test_what_is_printed_reads_back_and_hides_secrets(tmp_path):
    labels = "[agent.labels]\n'example.com/zone' = 'a'\n"
    text = labels + "[[alerts.sinks]]\ntype = 'webhook'\nurl = 'http://x'\nsecret = 's3'\n"
    loaded = load(written(tmp_path, text), {})
    out = "\n".join(config_report.printed(loaded))
    assert "s3" not in out
    again = load(written(tmp_path, out, "again.toml"), {})
    assert again.config.agent == loaded.config.agent
    assert tomllib.loads(out)["farm"]["ttl"] == 10


def test_what_is_printed_hides_credentials_in_addresses(tmp_path):
    sink = "[[alerts.sinks]]\ntype = 'webhook'\nurl = 'https://ada:hunter2@h/x?token=hunter2'\n"
    text = f"[scheduler]\nurl = 'https://hunter2@h/x'\n{sink}"
    out = "\n".join(config_report.printed(load(written(tmp_path, text), {})))
    assert "hunter2" not in out
    assert 'url = "https://[hidden]@h/x"' in out
    assert 'url = "https://[hidden]@h/x?[hidden]"' in out
    changed = changes(load(None, {}).config, load(tmp_path / "farmd.toml", {}).config)
    assert "hunter2" not in str(changed)


def test_a_key_is_explained_or_the_nearest_named():
    loaded = load(None, {"FARMD_LOG__LEVEL": "debug"})
    text = "\n".join(config_report.explained(loaded, "log.level"))
    assert "environment FARMD_LOG__LEVEL" in text
    assert "reload   yes" in text
    assert "type     one of debug, info, warning, error, critical" in text
    assert "  type     a time from 10 to 60 s\n" in "\n".join(config_report.explained(loaded, "farm.ttl"))
    with pytest.raises(ConfigInvalid, match=r"did you mean 'log.level'"):
        list(config_report.explained(loaded, "log.levle"))


def test_a_reload_knows_what_may_change():
    before = load(None, {}).config
    after = load(None, {"FARMD_LOG__LEVEL": "debug", "FARMD_FARM__TTL": "15"}).config
    assert [(one.key, one.before, one.after, one.reloadable) for one in changes(before, after)] == [
        ("farm.ttl", "10.0", "15.0", False),
        ("log.level", '"info"', '"debug"', True),
    ]
    assert changes(before, before) == []


def test_the_manual_equals_the_models():
    assert config_report.markdown() in DOCS.read_text()
