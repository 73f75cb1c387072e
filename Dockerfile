# Tessera's image: agent, server, controller and planner, with simulated GPUs.
#
#   docker build -t REGISTRY/tessera .        or podman build, buildah build; docs/image.md
#
# What the image consists of is made by deploy/image/rootfs.sh, which the testbed runs too; this file only gives it a Debian 12 to run in. Nothing
# of that is left in the result, which starts from scratch. It is debian:12-slim of 3 August 2026, for amd64, arm64 and more; docs/image.md.
ARG DEBIAN=docker.io/library/debian@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241
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
