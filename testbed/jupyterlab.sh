#!/usr/bin/env bash
# testbed/jupyterlab.sh FOLDER    adds JupyterLab, of PyPI, to a root that has Debian 12's Python
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
out=$1
. "$here/scripts/setup"
uv=$(setup_find_uv)
libraries=usr/local/lib/python3.11/dist-packages
mkdir -p "$out/$libraries" "$out/usr/local/bin" "$out/usr/local/share" "$out/usr/local/etc"
"$uv" pip install --quiet --only-binary :all: --python-version 3.11 --python-platform "$(uname -m)-manylinux_2_36" --target "$out/$libraries" jupyterlab==4.6.6 numpy
for part in share etc; do
  [ ! -d "$out/$libraries/$part" ] || { cp -r "$out/$libraries/$part/." "$out/usr/local/$part"; rm -rf "${out:?}/$libraries/$part"; }
done
rm -rf "${out:?}/$libraries/bin" "$out/$libraries/.lock"
printf '#!/usr/bin/python3 -I\nimport sys\nfrom jupyter_core.command import main\nsys.exit(main())\n' >"$out/usr/local/bin/jupyter"
printf '#!/usr/bin/python3 -I\nimport sys\nfrom jupyterlab.labapp import main\nsys.exit(main())\n' >"$out/usr/local/bin/jupyter-lab"
chmod 755 "$out/usr/local/bin/jupyter" "$out/usr/local/bin/jupyter-lab"
# Its sessions are in SQLite, whose library Tessera's image does without; terminals want a bash.
work=$(mktemp -d)
trap "rm -rf -- '$work'" EXIT
(cd -- "$work" && { apt-get download -qq -o APT::Sandbox::User=root libsqlite3-0 2>/dev/null || { apt-get update -qq && apt-get download -qq -o APT::Sandbox::User=root libsqlite3-0; }; })
dpkg-deb --fsys-tarfile "$work"/libsqlite3-0_*.deb | tar -x -C "$out" --keep-directory-symlink --wildcards './usr/lib/*/libsqlite3.so*'
ln -s dash "$out/usr/bin/bash"
# The usual small programs, of which `tessera run --code` needs tar and gzip: Debian's busybox-static, which a testbed has.
busybox=$(PATH=/usr/bin:/bin command -v busybox) || { echo "no busybox: apt-get install busybox-static" >&2; exit 1; }
cp -- "$busybox" "$out/usr/bin/busybox"
for name in $("$busybox" --list); do
  [ -e "$out/usr/bin/$name" ] || [ -L "$out/usr/bin/$name" ] || ln -s busybox "$out/usr/bin/$name"
done
