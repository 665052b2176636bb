"""The commands of docs/first-hosts.md, as they stand there, on a machine with a virgin ``/etc``.

The package is built, installed by apt, and upgraded under a running pod; Consul has ACLs and TLS, and in the
end farm and agent have certificates of its authority. One machine is host 1: its Consul is alone, and its
address is one of loopback.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.binaries import binary
from tests.farmctl import ROOT
from tests.uml import SHARED, UserModeMachine

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
SCRIPT = """\
set -eux
trap 'test $? = 0 || journalctl --no-pager -n 40 -u farmd -u farmd-agent' EXIT
ip link set lo up && ip address add 10.0.0.11/32 dev lo
{consul}
systemctl enable --now consul
until consul acl policy list 2>&1 | grep 'Permission denied'; do sleep 0.5; done
{bootstrap}
until consul catalog nodes | grep host-1; do sleep 0.5; done
cd {shared}
{host}
farmctl daemonset pods uptime
pod=$(pgrep -u farmd-pods -f 'while :; do uptime')
main=$(systemctl show --value -p MainPID farmd-agent)
dpkg --install ./farmd_*.deb
systemctl is-active farmd farmd-agent
test "$main" != "$(systemctl show --value -p MainPID farmd-agent)"
test "$pod" = "$(pgrep -u farmd-pods -f 'while :; do uptime')"
cd /etc/consul.d
{certificate}
{restart}
for role in farm agent; do until farmd health $role; do sleep 0.5; done; done
until FARMCTL_CACERT=/etc/consul.d/consul-agent-ca.pem farmctl daemonset logs uptime | grep 'load average'
do sleep 0.5; done
if farmctl daemonset logs uptime; then exit 1; fi
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


def test_five_commands_lead_to_a_first_pod(tmp_path: Path) -> None:
    package = packaged(tmp_path)
    mounts = {"/opt/bin/consul": binary("consul").resolve()}
    machine = UserModeMachine(tmp_path / "machine", mounts, folders_of(package))
    package.rename(machine.shared / package.name)
    machine.put("etc/hostname", "host-1\n")
    machine.put("etc/hosts", "127.0.0.1 localhost host-1\n")
    machine.put("etc/systemd/system/consul.service", CONSUL_UNIT)
    machine.put("etc/sysusers.d/consul.conf", "u consul - - /nonexistent\n")
    machine.put("etc/tmpfiles.d/consul.conf", "d /etc/consul.d 0755 - -\nd /opt/consul 0700 consul consul\n")
    words = ["/usr/bin/python3", "-c", "import platform; print(platform.python_version())"]
    version = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    known = [INSTALLED.format(name=name, version=version) for name in ("python3", "systemd")]
    machine.put("var/lib/dpkg/status", "".join(known))
    alone = block("consul").replace("= 3", "= 1").replace("{{ GetPrivateIP }}", "10.0.0.11")
    host = block("host-1")
    assert len(host.splitlines()) <= 5
    rest = {name: block(name) for name in ("bootstrap", "certificate", "restart")}
    script = SCRIPT.format(consul=alone, host=host, shared=SHARED, **rest)
    done = machine.boot(script)
    assert done.status == 0, done.output
