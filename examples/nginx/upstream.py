"""Keeps nginx's upstream in step with a service of farmd: renders it and reloads nginx at each change.

    python3 upstream.py --service hello --farm http://10.0.0.1:8100 --farm http://10.0.0.2:8100 \
        --output /etc/nginx/conf.d/hello.upstream --reload "nginx -s reload"

It asks one farm after the other, and waits there until the endpoints change. While no farm answers, or none of the
pods is available, the last upstream stays. It needs nothing but Python. For farms that serve HTTPS: --ca, and where they
ask for a certificate also --cert and --key.
"""

import argparse
import http.client
import itertools
import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

WAIT_SECONDS = 60
PAUSE_SECONDS = 0.5


def asked(farm, service, index, tls=None):
    """The index and the endpoints of a service, once the index is another one or the wait is over."""
    url = f"{farm}/v1/services/{service}/endpoints?index={index}&wait={WAIT_SECONDS}s"
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS + 10, context=tls) as answer:
        found = json.load(answer)
    return found["index"], [(each["address"], each["port"]) for each in found["items"]]


def trusting(authorities, certificate, key):
    """How farms are asked over HTTPS: the machine's authorities, or those of a file; with a certificate or none."""
    context = ssl.create_default_context(cafile=authorities)
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def rendered(service, endpoints):
    """The upstream block. farmd checks the pods' health, so nginx takes none out by itself (max_fails=0)."""
    hosts = [(f"[{address}]" if ":" in address else address, port) for address, port in endpoints]
    servers = "".join(f"    server {host}:{port} max_fails=0;\n" for host, port in hosts)
    return f"upstream {service} {{\n{servers}}}\n"


def written(path, text):
    """Write a file whole, so that nginx never reads half of it."""
    part = f"{path}.part"
    with open(part, "w") as file:
        file.write(text)
    os.replace(part, path)


def say(text):
    """One line for the log."""
    print(f"upstream: {text}", flush=True)


def main():
    """Follow a service until somebody ends this process."""
    parser = argparse.ArgumentParser(description="Keep nginx's upstream in step with a service of farmd.")
    parser.add_argument("--service", required=True)
    parser.add_argument(
        "--farm", required=True, action="append", help="a farm's HTTP address; several: in turn"
    )
    parser.add_argument("--output", required=True, help="the file that nginx includes")
    parser.add_argument("--reload", required=True, help="the command that lets nginx read it again")
    parser.add_argument("--ca", help="authorities of the farms' certificates; else the machine's")
    parser.add_argument("--cert", help="a certificate of its own")
    parser.add_argument("--key", help="the key of that certificate")
    told = parser.parse_args()
    tls = trusting(told.ca, told.cert, told.key)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    farms, index = itertools.cycle(told.farm), 0
    farm = next(farms)
    while True:
        try:
            now, endpoints = asked(farm, told.service, index, tls)
            if now == index:
                time.sleep(PAUSE_SECONDS)  # a proxy in between may answer at once
                continue
            if endpoints:
                written(told.output, rendered(told.service, endpoints))
                subprocess.run(shlex.split(told.reload), check=True)
            say(f"{len(endpoints)} endpoints" if endpoints else "no endpoints, the last ones stay")
            index = now
        except (
            OSError,
            ValueError,
            KeyError,
            http.client.HTTPException,
            subprocess.SubprocessError,
        ) as error:
            say(f"{farm}: {error}")
            farm = next(farms)
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
