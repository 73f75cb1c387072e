#!/usr/bin/env bash
# testbed/perfclient.sh FOLDER    adds NVIDIA's perf_client to a root that has Triton (testbed/tritonserver.sh), as /opt/perf/perf_client
#
# It is the one in the wheel tritonclient 2.41.1, the last that has it; its hash is below. Needs Debian 12, as the root does.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
out=$1
wheel='tritonclient==2.41.1 --hash=sha256:22ad56ae5ab25518862dec85af0a8246a32a1e14e2ee1d86f1444ce432c254e1'

. "$here/scripts/setup"
uv=$(setup_find_uv)
work=$(mktemp -d)
trap "rm -rf -- '$work'" EXIT
printf '%s\n' "$wheel" >"$work/requirements.txt"
"$uv" pip install --quiet --require-hashes --no-deps --only-binary :all: --python-version 3.11 --python-platform x86_64-manylinux_2_36 \
  --target "$work/wheel" --requirements "$work/requirements.txt"
mkdir -p "$out/opt/perf/lib"
install -m 755 "$work/wheel/bin/perf_client" "$out/opt/perf/perf_client"
# It is linked against CUDA's runtime, of which Triton's wheel has one under another name, and calls none of it here.
runtime=("$out"/opt/tritonserver/lib/libcudart-*.so.12*)
ln -sf "../../tritonserver/lib/${runtime[0]##*/}" "$out/opt/perf/lib/libcudart.so.12"
(cd -- "$work" && { apt-get download -qq -o APT::Sandbox::User=root libb64-0d 2>/dev/null || { apt-get update -qq && apt-get download -qq -o APT::Sandbox::User=root libb64-0d; }; })
dpkg-deb --fsys-tarfile "$work"/libb64-0d_*.deb | tar -x -C "$out" --keep-directory-symlink --wildcards './usr/lib/*/libb64.so*'
