#!/usr/bin/env bash
# testbed/tritonserver.sh FOLDER    adds Triton to a root that has Debian 12's Python, in which its models run
#
# The server is the one in NVIDIA's wheel nvidia-pytriton, without a GPU. It reads the arrays of numpy before 2.0; the hashes of both are below.
# Needs Debian 12, as the root does.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
out=$1
wheels=(
  'nvidia-pytriton==0.7.0 --hash=sha256:21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df'
  'numpy==1.26.4 --hash=sha256:666dbfb6ec68962c033a450943ded891bed2d54e6755e35e5835d63f4f6931d5'
)

. "$here/scripts/setup"
uv=$(setup_find_uv)
work=$(mktemp -d)
trap "rm -rf -- '$work'" EXIT
printf '%s\n' "${wheels[@]}" >"$work/requirements.txt"
"$uv" pip install --quiet --require-hashes --no-deps --only-binary :all: --python-version 3.11 --python-platform "$(uname -m)-manylinux_2_36" \
  --target "$work/wheel" --requirements "$work/requirements.txt"
server=$out/opt/tritonserver
mkdir -p "$server/backends" "$out/usr/local/bin" "$out/usr/local/lib/python3.11/dist-packages"
cp -r "$work/wheel/pytriton/tritonserver/bin" "$server"
cp -r "$work/wheel/pytriton/tritonserver/backends/python" "$server/backends"
cp -r "$work/wheel/nvidia_pytriton.libs" "$server/lib"
cp -r "$work/wheel/numpy" "$work/wheel/numpy.libs" "$out/usr/local/lib/python3.11/dist-packages"
cp "$work/wheel/pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub" "$server/backends/python"
chmod -R go-w,a+rX "$server"
chmod 755 "$server/bin/tritonserver" "$server/backends/python/triton_python_backend_stub"
ln -s /opt/tritonserver/bin/tritonserver "$out/usr/local/bin/tritonserver"
# Triton starts the stub by bash, of which it needs no more than dash has.
ln -s dash "$out/usr/bin/bash"
(cd -- "$work" && { apt-get download -qq -o APT::Sandbox::User=root libpython3.11 2>/dev/null || { apt-get update -qq && apt-get download -qq -o APT::Sandbox::User=root libpython3.11; }; })
dpkg-deb --fsys-tarfile "$work"/libpython3.11_*.deb | tar -x -C "$out" --keep-directory-symlink --wildcards './usr/lib/*/libpython3.11.so*'
