# One image for farms, agents and farmctl. The project's tests do not build it: see docs/operations.md.
ARG PYTHON=3.12.12-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
RUN python -m venv /opt/farmd
# The version, from git, is not in the image's sources: docker build --build-arg VERSION=1.2.0
ARG VERSION=0.0.0
ENV FARMD_BUILD_VERSION=${VERSION}
COPY locks/deploy.txt locks/deploy.txt
RUN /opt/farmd/bin/pip install --no-cache-dir --require-hashes -r locks/deploy.txt
COPY pyproject.toml hatch_build.py README.md LICENSE CHANGELOG.md ./
COPY store store
COPY scheduler scheduler
COPY alerting alerting
COPY farmd farmd
COPY docs/runbooks docs/runbooks
COPY systemd systemd
COPY acl acl
RUN /opt/farmd/bin/pip install --no-cache-dir --no-deps .

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="farmd" \
      org.opencontainers.image.description="A distributed controller daemon that keeps fleets converged" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/farmd /opt/farmd
# As whom pods of an agent run that is root: docker run --user 0:0 --cap-drop ALL --cap-add CHOWN …, as in docker-compose.yml.
RUN useradd --system --uid 10002 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin farmd-pods
# A numeric user, so that an orchestrator can check that it is not root. Volumes at these folders get their owner.
RUN cd /run && install -d -o 10001 -g 10001 /var/lib/farmd-agent tokens/admin tokens/farm tokens/node-1 tokens/node-2 tokens/node-3
USER 10001:10001
ENV PATH=/opt/farmd/bin:$PATH
EXPOSE 7520 7521
ENTRYPOINT ["farmd"]
CMD ["run"]
