# All commands for developers and CI; `make help` lists them. Needs python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
CODE := store scheduler alerting farmd monitoring acl tests bench .ci hatch_build.py
PROGRAMS := nginx age age-keygen prometheus promtool prometheus-alertmanager docker-registry linux.uml
BUILT := etcd kube-apiserver kustomize helm consul-1.14
bench: PROGRAMS :=
bench: BUILT := etcd kube-apiserver

# Without bytecode each process of a test would compile all modules anew, for 0.2 s of CPU.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv machine servers programs demo dev test test-all test-rest test-newer test-fast plain soak lint docs format install-systemd uninstall-systemd bench audit lock pin-images package pictures clean compose-up compose-down

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

venv: ## Set up .venv from locks/test.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing: install python >= 3.11 (Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) .ci/venv.py

demo: venv ## A fleet on this machine, from a command to running processes, in under a minute
	@$(BIN)/python -m farmd.dev.demo

dev: venv ## Keep such a fleet up until ^C
	@$(BIN)/python -m farmd dev

test: servers ## Tests that need Python, make and a Consul alone: no root, nothing compiled; 5 minutes
	$(if $(ALL),,FARMD_TEST_BRIEF=1) PYTHONHASHSEED=0 $(BIN)/pytest -n 4 --dist loadgroup -m everywhere $$($(BIN)/python -m tests.promises)

test-all: ALL := 1
test-all: machine test test-rest test-newer ## Every test: as root on Debian, for containers, systemd, Kubernetes and a browser; 20 minutes and builds

# Tests on real parts wait more than they compute: six workers keep two cores busy.
test-rest: servers programs
	PYTHONHASHSEED=0 $(BIN)/pytest -n 6 --dist loadgroup -m "not everywhere" $$($(BIN)/python -m tests.promises rest)

# The contract, and the cases that guard the rules, on a newer Consul.
test-newer: programs
	FARMD_TEST_CONSUL=1.14 $(BIN)/pytest -o cache_dir=.pytest_cache/newer -n 6 --dist loadgroup tests/contract $$($(BIN)/python -m tests.promises rules)

test-fast: venv ## Unit tests only
	$(BIN)/pytest -n 2 tests/unit

machine: venv
	@$(BIN)/python -m tests.machine

servers: venv
	@$(BIN)/python -m tests.binaries consul age age-keygen >&2

# Kubernetes, kustomize, Helm and a newer Consul are built from their sources once, in minutes, and kept outside of this clone.
programs: venv
	@$(BIN)/python -m tests.binaries $(PROGRAMS) $(BUILT) >&2

plain: ## `make demo` and `make test` on a Debian with Python and make alone, as a user (as root; GOALS=demo)
	@$(PYTHON) -m tests.plain $(GOALS)

soak: servers ## A fleet on a real Consul under edits and faults for an hour (MINUTES=240 SEED=1 CONSULS=3)
	@$(if $(CONSULS),unshare --net sh -c 'ip link set lo up && exec "$$@"' soak) \
	  $(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60) $(addprefix --seed ,$(SEED)) $(addprefix --servers ,$(CONSULS))

lint: venv ## Formatting, rules, types, layers
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: venv ## Write the reference of farmctl into docs/cli.md, from the commands
	$(BIN)/python -m farmd.cli.reference docs/cli.md

format: venv ## Format the code
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# Where units go: LIBDIR=/etc puts them where a machine's own units are. DESTDIR is in front of every path.
LIBDIR ?= /usr/lib
SYSTEMD ?= $(shell systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
UNITS := farmd.service farmd-agent.service
# systemd before 253 does not know this type of service.
RELOADS = $(if $(shell [ "$(SYSTEMD)0" -ge 2530 ] 2>/dev/null && echo yes),$(UNITS))
NAMES := $(UNITS:.service=)

install-systemd: ## Put units, users, folders and environment files in place (DESTDIR=/tmp/root LIBDIR=/etc SYSTEMD=252)
	for unit in $(UNITS); do install -D -m 644 systemd/$$unit $(DESTDIR)$(LIBDIR)/systemd/system/$$unit || exit; done
	for unit in $(RELOADS); do install -D -m 644 systemd/notify-reload.conf $(DESTDIR)$(LIBDIR)/systemd/system/$$unit.d/notify-reload.conf || exit; done
	for kind in sysusers tmpfiles; do install -D -m 644 systemd/$$kind.conf $(DESTDIR)$(LIBDIR)/$$kind.d/farmd.conf || exit; done
	for name in $(NAMES); do [ -e $(DESTDIR)/etc/default/$$name ] || install -D -m 600 systemd/$$name.default $(DESTDIR)/etc/default/$$name || exit; done

uninstall-systemd: ## Take them out again; an environment file that was changed stays
	rm -f $(UNITS:%=$(DESTDIR)$(LIBDIR)/systemd/system/%) $(UNITS:%=$(DESTDIR)$(LIBDIR)/systemd/system/%.d/notify-reload.conf)
	rm -f $(foreach kind,sysusers tmpfiles,$(DESTDIR)$(LIBDIR)/$(kind).d/farmd.conf)
	for unit in $(UNITS); do rmdir $(DESTDIR)$(LIBDIR)/systemd/system/$$unit.d 2>/dev/null || true; done
	for name in $(NAMES); do cmp -s systemd/$$name.default $(DESTDIR)/etc/default/$$name && rm $(DESTDIR)/etc/default/$$name || true; done

bench: servers programs ## The performance budget, one JSON line each, on a real Consul with fsync
	@$(PYTHON) .ci/venv.py bench
	@$(BIN)/python -m bench

audit: venv ## Known weaknesses of locks/deploy.txt; needs PyPI itself, not a mirror
	@$(PYTHON) .ci/venv.py audit
	@$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r locks/deploy.txt

lock: venv ## Pin what pyproject.toml asks for, with hashes, in locks/ (UPGRADE=1: the newest versions)
	@$(PYTHON) .ci/venv.py lock
	@$(BIN)/python .ci/lock.py $(if $(UPGRADE),--upgrade)

pin-images: ## Write the digests of images beside their tags (docker-compose.yml, Dockerfile); asks their registries
	@$(PYTHON) .ci/pin_images.py

package: venv ## Wheel, sdist, .deb, and farmctl as one file, in dist/
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/shiv --reproducible --compressed --console-script farmctl --output-file dist/farmctl dist/farmd-*.whl
	$(BIN)/python .ci/deb.py $$(ls -t dist/farmd-*.whl | head -n 1)

pictures: venv ## The README's pictures, of a real fleet; needs chromium
	$(BIN)/python .ci/pictures.py

compose-up: ## The fleet of docker-compose.yml, in containers; prints where everything is
	docker compose up --detach --build --wait
	@sed -n 's/^# | //p' docker-compose.yml

compose-down: ## End it (VOLUMES=1: its data, too)
	docker compose --profile tools down $(if $(VOLUMES),--volumes)

clean: ## Remove caches and .venv, keep fetched servers
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
