# Tessera's image: agent, server, controller and planner, with simulated GPUs.
#
#   docker build -t REGISTRY/tessera .        or podman build, buildah build; docs/image.md
#
# What the image consists of is made by deploy/image/rootfs.sh, which the testbed runs too; this file only gives it a Debian 12 to run in. Nothing
# of that is left in the result, which starts from scratch. To pin it: --build-arg DEBIAN=docker.io/library/debian@sha256:...
ARG DEBIAN=docker.io/library/debian:12-slim
FROM ${DEBIAN} AS base
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends ca-certificates gcc libc6-dev python3 python3-venv
WORKDIR /checkout
COPY deploy/image/rootfs.sh deploy/image/
COPY scripts/setup scripts/
COPY pyproject.toml uv.lock ./
RUN deploy/image/rootfs.sh base /image/base

FROM base AS tessera
COPY . .
RUN deploy/image/rootfs.sh tessera /image/tessera /image/base

FROM scratch
COPY --from=base /image/base /
COPY --from=tessera /image/tessera /
ENV PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp PYTHONUTF8=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["tessera"]
