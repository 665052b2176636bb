"""The commands of docs/first-hosts.md, as they stand there, on three machines with a virgin ``/etc``.

The package is built, installed by apt, and upgraded under a running pod. Consul has three servers with ACLs
and TLS, and in the end a farm and an agent have certificates of its authority. The machines have a network of
their own. What people carry from host to host lies in a folder that all of them see, by which ``ssh`` has the
other host do what it is told, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.binaries import binary
from tests.farmctl import ROOT
from tests.ports import free_ports
from tests.uml import UserModeMachine, linked

pytestmark = [pytest.mark.xdist_group("systemd"), pytest.mark.slow]

# What the package of HashiCorp brings.
CONSUL_UNIT = """\
[Service]
User=consul
ExecStart=/opt/bin/consul agent -config-dir=/etc/consul.d/
ExecReload=/bin/kill -HUP $MAINPID
LimitNOFILE=65536
[Install]
WantedBy=multi-user.target
"""
INSTALLED = """\
Package: {name}
Status: install ok installed
Maintainer: nobody
Architecture: all
Version: {version}
Description: {name}

"""
# On every host: ``eventually COMMAND`` gives up once another host has failed.
EACH = """\
set -eux
failed() {{ touch /common/failed; journalctl --no-pager -n 40 -u consul -u farmd -u farmd-agent; }}
trap 'test $? = 0 || failed' EXIT
eventually() {{ until "$@"; do test ! -e /common/failed; sleep 0.5; done; }}
ip link set lo up
ip link set eth0 up
ip address add 10.0.0.1{number}/24 dev eth0
cd /common
"""
FIRST = """\
ssh() {{
  asked=$(mktemp -u ${{1#root@}}.XXXXXX) && shift
  mkdir part && cat >part/input && echo "$*" >part/command && mv part $asked
  eventually test -e $asked/done
}}
scp() {{ true; }}
leaderless() {{ ! consul acl policy list 2>&1 | grep 'Permission denied'; }}
{consul}
mkdir /common/part
cp -p consul.hcl consul-agent-ca.pem dc1-server-consul-0*.pem /common/part
mv /common/part /common/consul.d
systemctl enable --now consul
while leaderless; do sleep 0.5; done
{bootstrap}
cp -p token.hcl /common/part
mv /common/part /common/token.hcl
catalogued() {{ consul catalog nodes | grep $1; }}
for name in host-1 host-2 host-3; do eventually catalogued $name; done
cd /common
{host}
farmctl node token host-2 >part && mv part token
seen() {{ farmctl daemonset logs uptime | grep "$1/.*load average"; }}
{third}
for name in host-1 host-2 host-3; do eventually seen $name; done
{second_farm}
systemctl stop farmd
owned() {{ farmctl daemonset describe uptime | grep "^Owner: .*farm $1"; }}
eventually owned host-2
systemctl start farmd
pod=$(pgrep -u farmd-pods -f 'while :; do uptime')
main=$(systemctl show --value -p MainPID farmd-agent)
dpkg --install ./farmd_*.deb
systemctl is-active farmd farmd-agent
test "$main" != "$(systemctl show --value -p MainPID farmd-agent)"
test "$pod" = "$(pgrep -u farmd-pods -f 'while :; do uptime')"
cd /etc/consul.d
{certificate}
{restart}
for role in farm agent; do eventually farmd health $role; done
trusted() {{ FARMCTL_CACERT=/etc/consul.d/consul-agent-ca.pem seen host-1; }}
eventually trusted
if seen host-1; then exit 1; fi
touch /common/end
"""
OTHER = """\
eventually test -e consul.d
cp -p consul.d/* /etc/consul.d
chown -R consul:consul /etc/consul.d
systemctl enable --now consul
eventually test -e token.hcl
install -m 600 -o consul token.hcl /etc/consul.d
systemctl reload consul
{own}
until [ -e end ]; do
  test ! -e failed
  for asked in host-{number}.*; do
    if [ -e "$asked" ] && [ ! -e "$asked/done" ]; then
      sh -eux "$asked/command" <"$asked/input"
      touch "$asked/done"
    fi
  done
  sleep 0.5
done
"""


def block(name: str) -> str:
    """The commands of the page behind this mark."""
    text = (ROOT / "docs/first-hosts.md").read_text()
    found = re.search(rf"<!-- {name} -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None, name
    return found[1]


def packaged(folder: Path) -> Path:
    """The package, from a wheel of this checkout."""
    tool = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check")
    subprocess.run([*tool, "--wheel", "--outdir", folder, ROOT], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([sys.executable, ROOT / ".ci/deb.py", wheel], check=True, capture_output=True)
    [package] = folder.glob("*.deb")
    return package


def folders_of(package: Path) -> list[str]:
    """The folders of ``usr`` that the package shares with this machine, parents first."""
    listed = subprocess.run(["dpkg-deb", "-c", package], check=True, capture_output=True, text=True).stdout
    found = [Path(path) for path in re.findall(r"\./usr/(\S+)/$", listed, re.MULTILINE)]
    return [".", *(str(path) for path in sorted(found) if (Path("/usr") / path).is_dir())]


def machine(folder: Path, number: int, port: int, package: Path, common: Path) -> UserModeMachine:
    """A host with a network card, a Consul without configuration, Python and systemd."""
    mounts = {"/opt/bin/consul": binary("consul").resolve()}
    name = f"host-{number}"
    made = UserModeMachine(folder / name, mounts, folders_of(package), common, linked(number, port))
    made.put("etc/hostname", f"{name}\n")
    made.put("etc/hosts", f"127.0.0.1 localhost\n10.0.0.1{number} {name}\n")
    made.put("etc/systemd/system/consul.service", CONSUL_UNIT)
    made.put("etc/sysusers.d/consul.conf", "u consul - - /nonexistent\n")
    made.put("etc/tmpfiles.d/consul.conf", "d /etc/consul.d 0755 - -\nd /opt/consul 0700 consul consul\n")
    words = ["/usr/bin/python3", "-c", "import platform; print(platform.python_version())"]
    version = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    known = [INSTALLED.format(name=name, version=version) for name in ("python3", "systemd")]
    made.put("var/lib/dpkg/status", "".join(known))
    return made


def test_at_most_five_commands_a_host_lead_to_a_pod_on_each_of_three(tmp_path: Path) -> None:
    package, common = packaged(tmp_path), tmp_path / "common"
    common.mkdir()
    package = package.rename(common / package.name)
    [port] = free_ports(1)
    hosts = [machine(tmp_path, number, port, package, common) for number in (1, 2, 3)]
    names = ("consul", "bootstrap", "host-1", "host-2", "host-3", "farm-2", "certificate", "restart")
    page = {name: block(name) for name in names}
    assert max(len(page[f"host-{number}"].splitlines()) for number in (1, 2, 3)) <= 5
    typed = page["host-2"].replace("--token-file -", "-y --token-file - <token")
    scripts = [
        FIRST.format(host=page["host-1"], third=page["host-3"], second_farm=page["farm-2"], **page),
        OTHER.format(number=2, own=f"eventually test -e token\n{typed}"),
        OTHER.format(number=3, own=""),
    ]
    told = [EACH.format(number=number) + script for number, script in enumerate(scripts, 1)]
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(UserModeMachine.boot, hosts, told))
    assert [done.status for done in ended] == [0, 0, 0], "\n\n".join(done.output for done in ended)
