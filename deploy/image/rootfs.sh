#!/usr/bin/env bash
# deploy/image/rootfs.sh base FOLDER             Debian's Python, a shell, and the libraries of uv.lock
# deploy/image/rootfs.sh tessera FOLDER BASE     this checkout's wheel and the simulated GPUs; BASE was made by the line above
#
# The layers of Tessera's image, as folders. The Dockerfile runs this in a container, the testbed without an engine.
# Needs Debian 12 or a container of it, root, and its packages python3 python3-venv gcc libc6-dev. Debian's packages are checked by apt's
# signatures, libraries by their hashes in uv.lock.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)

# python3.11-minimal has no dependency that is not named; of libpython3.11-stdlib's, those of curses, readline, dbm, NIS and SQLite are left out.
packages=(
  libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libuuid1 libcrypt1
  python3.11-minimal libpython3.11-minimal libpython3.11-stdlib dash
)
# The programs of `tessera disk-agent`, of packages of which nothing else is kept, and the libraries that these need.
disk_packages=(mdadm e2fsprogs xfsprogs util-linux mount)
disk_programs=(./sbin/mdadm ./sbin/mke2fs ./sbin/mkfs.ext4 ./sbin/mkfs.xfs ./sbin/blkid ./sbin/wipefs ./bin/mount ./etc/mke2fs.conf)
disk_libraries=(libblkid1 libcom-err2 libext2fs2 libinih1 libmount1 libpcre2-8-0 libselinux1 libsmartcols1 libudev1 liburcu8)
stdlib=usr/lib/python3.11
libraries=usr/local/lib/python3.11/dist-packages

stop() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# trim FOLDER: removes what only developers read, and compiles the rest: a root that cannot be written to keeps nothing for the next start.
trim() {
  find "$1" -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -rf {} +
  find "$1" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.a' -o -name '*.h' \) -not -path '*/nvmlsim/native/*' -delete
}

# without_builder FOLDER: removes what names the machine that built this: programs of libraries, where wheels came from, and the records of both.
without_builder() {
  rm -rf "$1/bin" "$1/.lock" "$1"/*.dist-info/{direct_url,uv_cache}.json
  sed -i -e '/^bin\//d' -e '/dist-info\/\(direct_url\|uv_cache\).json,/d' "$1"/*.dist-info/RECORD
}

# precompile ROOT BELOW FOLDER: compiles FOLDER of the layer that lies at BELOW in ROOT.
precompile() {
  chroot "$1" /usr/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash -s "$2" -p / "$2/$3"
}

# download FOLDER: gets the packages; fails where the lists of apt are not there, or too old.
download() {
  (cd -- "$1" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" "${disk_packages[@]}" "${disk_libraries[@]}")
}

make_base() {
  local out=$1 debs package
  . /etc/os-release
  [ "${VERSION_ID:-}" = 12 ] || stop "the image is made of Debian 12's packages, found ${PRETTY_NAME:-another system}: build the Dockerfile instead"
  debs=$(mktemp -d)
  trap "rm -rf -- '$debs'" EXIT
  download "$debs" 2>/dev/null || { apt-get update -qq && download "$debs"; } || stop "apt-get download: see the lines above"
  mkdir -p "$out"/usr/{bin,sbin,lib,lib64} "$out"/{etc,tmp,proc,sys,dev,run,var/lib,"$libraries"}
  chmod 1777 "$out/tmp"
  for package in bin sbin lib lib64; do ln -s "usr/$package" "$out/$package"; done
  for package in "${disk_packages[@]}"; do
    # tar fails for those programs of the list that are another package's.
    dpkg-deb --fsys-tarfile "$debs/$package"_*.deb | tar -x -C "$out" --keep-directory-symlink "${disk_programs[@]}" 2>/dev/null || true
    rm "$debs/$package"_*.deb
  done
  for package in "$debs"/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$out" --keep-directory-symlink --exclude='./usr/share/*' --exclude='./etc/apt*' \
      --exclude='./usr/lib/*/gconv' --exclude='*/lib2to3' --exclude='*/pydoc_data' --exclude='*/ensurepip' --exclude='*/distutils'
  done
  for package in mdadm mke2fs mkfs.ext4 mkfs.xfs blkid wipefs mount; do
    chroot "$out" /bin/sh -c "PATH=/sbin:/bin; $package -V" >/dev/null 2>&1 || stop "$package: does not run in the image; a library is missing"
  done
  ln -sf python3.11 "$out/usr/bin/python3"
  ln -sf dash "$out/usr/bin/sh"
  printf 'root:x:0:0:root:/tmp:/bin/sh\ntessera:x:65532:65532:tessera:/tmp:/bin/sh\n' >"$out/etc/passwd"
  printf 'root:x:0:\ntessera:x:65532:\n' >"$out/etc/group"
  printf 'hosts: files dns\n' >"$out/etc/nsswitch.conf"

  . "$here/scripts/setup"
  local uv
  uv=$(setup_find_uv)
  "$uv" export --quiet --project "$here" --frozen --no-default-groups --extra cluster --extra az --extra gs --no-emit-project --format requirements-txt >"$debs/requirements.txt"
  "$uv" pip install --quiet --require-hashes --only-binary :all: --python-version 3.11 --python-platform "$(uname -m)-manylinux_2_36" \
    --target "$out/$libraries" --requirements "$debs/requirements.txt"
  without_builder "$out/$libraries"
  trim "$out/$libraries"
  trim "$out/$stdlib"
  precompile "$out" "" "/$stdlib"
  precompile "$out" "" "/$libraries"
}

make_tessera() {
  local out=$1 base=$2 inside=.tessera uv wheels flags
  . "$here/scripts/setup"
  uv=$(setup_find_uv)
  wheels=$(mktemp -d)
  trap "rm -rf -- '$wheels' '$base/$inside'" EXIT
  "$uv" build --quiet --wheel --out-dir "$wheels" "$here"
  rm -rf "${base:?}/$inside"
  mkdir -p "$base/$inside/usr/local/bin" "$base/$inside/opt/nvmlsim"
  "$uv" pip install --quiet --no-deps --python-version 3.11 --target "$base/$inside/$libraries" "$wheels"/*.whl
  without_builder "$base/$inside/$libraries"
  printf '#!/usr/bin/python3.11 -I\nimport sys\nfrom tessera.cli import main\nsys.exit(main())\n' >"$base/$inside/usr/local/bin/tessera"
  chmod 755 "$base/$inside/usr/local/bin/tessera"
  # Simulated GPUs: their library, and the stand-in for the program that comes with the driver.
  local native=$libraries/tessera/sim/nvmlsim/native run=(chroot "$base" /usr/bin/python3.11 -c)
  local path="import sys; sys.path.insert(0, '/$inside/$libraries')"
  flags=$("${run[@]}" "$path; from tessera.sim.nvmlsim.building import FLAGS; print(*FLAGS)")
  # shellcheck disable=SC2086  # one word a flag
  gcc $flags -o "$base/$inside/$native/libnvidia-ml.so.1" "$base/$inside/$native"/*.c
  "${run[@]}" "$path; from pathlib import Path; from tessera.sim.mpscontrol import install; install(Path('/$inside/opt/nvmlsim/bin'))"
  ln -s "/$native/libnvidia-ml.so.1" "$base/$inside/opt/nvmlsim/libnvidia-ml.so.1"
  trim "$base/$inside/$libraries"
  precompile "$base" "/$inside" "$libraries"
  mkdir -p "$(dirname -- "$out")"
  mv "$base/$inside" "$out"
}

case "$#:${1:-}" in
  2:base) make_base "$2" ;;
  3:tessera) make_tessera "$2" "$3" ;;
  *) sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
