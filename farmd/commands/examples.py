"""A commented document of each kind, for ``farmctl example KIND``: a beginning that works unchanged."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, str] = {
    "rc": """\
# A controller keeps N copies of a pod running on matching nodes.
#   farmctl rc create -f FILE --wait      create it
#   farmctl rc update -f FILE --wait      change it; a new pod comes by a rollout
apiVersion: farmd/v1
kind: rc
name: web
replicas: 2
replicas_per_node: 1          # more lets several copies share a node
node_selector: ""             # empty: every node; such as role=web,disk!=hdd
min_healthy_time: 5s          # how long a pod must be healthy before it counts as available
pod_labels: {app: web}
pod:
  id: web                     # the instance's name on its node
  command: [python3, -m, http.server, "$(FARMD_PORT_HTTP)"]
  env: {GREETING: hello}
  # artifacts:                # fetched before a start: app/ is in the program's directory then
  #   - {source: "https://HOST/web.tar.gz", sha256: 64 HEX DIGITS, unpack: tar.gz, to: app}
  ports:
    http: {}                  # the agent picks a free port and passes it as FARMD_PORT_HTTP
  health:
    type: tcp                 # or http with a path, or command
    port: http
    interval: 2s
  resources: {cpu: 100m, memory: 64Mi}
  stop: {delay: 2s, grace: 10s}  # no longer an endpoint for 2 s, then SIGTERM, then SIGKILL
rollout:
  stages: [1, "100%"]         # one new pod first; a version that fails is reverted
""",
    "daemonset": """\
# A daemon set keeps one pod on every node that fits, as for log shippers.
#   farmctl daemonset create -f FILE --wait
apiVersion: farmd/v1
kind: daemonset
name: uptime
node_selector: ""             # empty: every node
min_healthy_time: 5s
rate: 30                      # nodes per minute that get a pod or a new version; 0: no limit
pod:
  id: uptime
  command: [sh, -c, "while :; do uptime; sleep 60; done"]
  system: true                # a drain removes it last
""",
    "job": """\
# A job runs slots until completion: here 12, four at a time.
#   farmctl job run -f FILE --wait
apiVersion: farmd/v1
kind: job
name: squares
types:
  - name: worker
    replicas: 12
    parallelism: 4
    restart: exit-code        # an exit code of 128 or more is tried again, a lower one fails the job
    pod:
      id: squares
      command: [sh, -c, 'echo "$FARMD_INDEX squared is $((FARMD_INDEX * FARMD_INDEX))"']
""",
    "job-template": """\
# A job template lets others start jobs, who choose its parameters and its input, and nothing else.
#   farmctl job template create -f FILE
#   farmctl job start greet --param name=Ada
apiVersion: farmd/v1
kind: job-template
name: greet
description: Greets somebody.
parameters:                   # types: string, integer, number, boolean
  name: {required: true, description: Whom to greet}
  word: {default: Hello, choices: [Hello, Hallo]}
# input: {max_bytes: 4096}    # what job start --input FILE sends; the job says ${input} where it stands
job:                          # the document of a job, without its name
  ttl: 1h
  types:
    - name: worker
      restart: never
      pod:
        id: greet
        env:                  # values stand in variables and in files of pods alone
          WHOM: "${param.name}"
          WORD: "${param.word}"
        command: [sh, -c, 'echo "$WORD, $WHOM"']
""",
    "schedule": """\
# A schedule creates a job at each of its times, exactly once.
#   farmctl schedule create -f FILE
apiVersion: farmd/v1
kind: schedule
name: nightly
cron: "30 2 * * *"            # or @daily; or every: 6h, with a start
zone: Europe/Berlin
overlap: forbid               # a time that comes while a job runs is skipped; or allow, or replace
catch_up: 10m                 # a time that was missed still counts for so long
keep: {done: 3, failed: 10}   # jobs that ended
job:                          # the document of a job, without its name
  types:
    - name: worker
      restart: never
      pod: {id: nightly, command: [date]}
""",
    "app": """\
# An app is a bundle of documents that are applied in waves, kept as they are written, and pruned together.
#   farmctl apply -f FILE
apiVersion: farmd/v1
kind: app
name: shop
on_failure: rollback          # go back to the last revision that was reached
deadline: 5m                  # how long a wave may take
---
apiVersion: farmd/v1
kind: rc
name: shop-store
replicas: 1
pod: {id: shop-store, command: [sleep, infinity]}
---
apiVersion: farmd/v1
kind: rc
name: shop-web
wave: 1                       # once everything of wave 0 is ready
ignore: [replicas]            # people scale it as they like
replicas: 2
pod: {id: shop-web, command: [sleep, infinity]}
""",
    "service": """\
# A service of containers, as a deployment brings it; compose files are taken by farmctl deploy, too.
#   farmctl apply -f FILE --app NAME
apiVersion: farmd/v1
kind: service
name: web
replicas: 2
container:
  image: nginx:1.27
  env: {TZ: UTC}
ports: [{container: 80}]
catalog: {tags: [edge]}       # Consul's catalogue and DNS find its pods as "web"
update:
  order: start-first          # the new container first, then the old one goes
---
# The other form of a service: a name for pods that have a file of their own.
apiVersion: farmd/v1
kind: service
name: shop
pods: [rc/shop-web]           # in place of container; a rollout of it keeps this up to date
port: http                    # the name of a port in their manifest
catalog: {}                   # Consul's catalogue and DNS find its pods as "shop"
""",
    "node": """\
# Settings of a node: labels, taints and capacity are added to those that its agent reports.
#   farmctl import FILE
apiVersion: farmd/v1
kind: node
name: web1
labels: {rack: r1, role: web}
taints:
  - {key: dedicated, value: db, effect: no-schedule}
capacity: {cpu: 4, memory: 8Gi}
""",
}
