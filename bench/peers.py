"""How often 16 nodes that fetch one model together read the bucket, and how long it takes beside one node alone.

`python bench/peers.py [--nodes N] [--mbit RATE] [--files MIB,MIB...] [--folder FOLDER]`

Nodes and an S3 server are network namespaces on a bridge; each has a link of `--mbit` each way (tc, token bucket).
Nodes share chunks over mutual TLS, as agents do. Needs root, ip and tc.

alone     one node, without peers
together  all nodes at once
killed    the same; one node is killed when half of the model has left the bucket
bad       the same; one node serves wrong chunks

The content is the same each time, because who owns which chunk follows from it: of the 48 objects the bad node
owns 4 of 16 nodes', as many as one may; with other content it owns 0 to 4, and the run takes as much longer.

Bucket is the bytes of objects that left the server, in copies of the model. Floors: together and killed at most 1.05
copies, bad at most 1.25; together at most 2.5 times the time of one node alone, killed at most 3.5, bad at most 5;
every node but the killed one has the right model; at least half of the nodes name the bad node, and none names another.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.certificates import make_certificates
from harness.fasts3 import FastS3
from harness.peernodes import BadPeerContent, PeerNode
from tessera.agent.storage.models.staging import SyncOptions
from tessera.clients.store import open_store

MIB = 2**20
PORT, SERVER = 9443, 250
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
FILES = ",".join(["1"] * 48)
PATIENCE_S = 120


class Run(NamedTuple):
    """What came of one run: seconds of the slowest node, copies that left the bucket, results of the nodes."""

    seconds: float
    copies: float
    results: list[dict[str, object]]


def address(number: int) -> str:
    """Return the address of a namespace."""
    return f"10.199.0.{number + 1}"


# What runs inside of a namespace: tells its parent lines of JSON, and does what its parent writes


def tell(**fields: object) -> None:
    """Tell the parent."""
    print(json.dumps(fields), flush=True)


def serve(folder: Path) -> None:
    """Be the bucket; each line that is read is answered with the bytes that were sent."""
    server = FastS3(folder, "md5")
    with socket.create_server((address(SERVER), 80), backlog=1024) as listening:
        threading.Thread(target=server.accept, args=(listening,), daemon=True).start()
        tell(ready=True)
        for _ in sys.stdin:
            tell(sent=server.sent)
    os._exit(0)


def be_node(number: int, top: Path, pki: Path, count: int, *, bad: bool) -> None:
    """Be a node: sync when the first line comes, serve until there are no more."""
    served = BadPeerContent(top.parent) if bad else None
    node = PeerNode(top, pki, served=served, at=(address(number), PORT), patience=None)
    node.peers.set_peers(f"{address(each)}:{PORT}" for each in range(count))
    store = open_store("s3://models/m", {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{address(SERVER)}"})
    tell(ready=True)
    sys.stdin.readline()
    begun = time.monotonic()
    done = node.sync(store, SyncOptions(reserve_bytes=0))
    tell(
        revision=done.revision,
        seconds=time.monotonic() - begun,
        named=list(node.named),
        from_peers=node.peers.bytes_from_peers,
        from_store=node.peers.bytes_from_stores,
    )
    sys.stdin.read()
    os._exit(0)


# The parent


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def network(names: dict[int, str], mbit: int) -> Iterator[None]:
    """Make namespaces on a bridge that is in one of its own, each link shaped in both directions."""
    switch = f"tpb{os.getpid()}"
    shape = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "300ms")
    made = [switch]
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in names.items():
            ip("netns", "add", name)
            made.append(name)
            peer = ("peer", "name", "eth0", "netns", name)
            ip("-n", switch, "link", "add", f"port{number}", "type", "veth", *peer)
            ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{address(number)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            for namespace, link in ((name, "eth0"), (switch, f"port{number}")):
                subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", link, *shape], check=True)
        yield
    finally:
        for name in reversed(made):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def started(namespace: str, *words: object) -> subprocess.Popen[str]:
    """Start this program in a namespace."""
    command = ["ip", "netns", "exec", namespace, sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> dict[str, object]:
    """Return the next line of a process; empty where it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line) if line else {}


def ask(process: subprocess.Popen[str]) -> dict[str, object]:
    """Write a line to a process, and return its next one."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return heard(process)


def run(
    names: dict[int, str], work: Path, count: int, size: int, *, killed: int | None = None, bad_peer: int | None = None
) -> Run:
    """Let nodes fetch the model, and return what came of it."""
    with contextlib.ExitStack() as stack:

        def start(*words: object) -> subprocess.Popen[str]:
            process = started(*map(str, words))
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        server = start(names[SERVER], "--serve", work / "buckets")
        nodes = []
        for number in range(count):
            words = ["--node", number, "--top", work / "nodes" / str(number), "--pki", work / "pki", "--nodes", count]
            nodes.append(start(names[number], *words, *(["--bad"] if number == bad_peer else [])))
        for process in (server, *nodes):
            heard(process)
        results: list[dict[str, object]] = [{}] * count

        def follow(number: int) -> None:
            results[number] = ask(nodes[number])

        threads = [threading.Thread(target=follow, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + PATIENCE_S
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            for node in nodes if time.monotonic() > until else ():
                node.kill()
            if killed is not None and float(str(ask(server)["sent"])) >= size / 2 and nodes[killed].poll() is None:
                nodes[killed].kill()
        for thread in threads:
            thread.join()
        sent = float(str(ask(server)["sent"]))
    shutil.rmtree(work / "nodes")
    seconds = max((float(str(each["seconds"])) for each in results if each), default=0.0)
    print(f"{seconds:.1f} s, {sent / size:.3f} copies")
    return Run(seconds, sent / size, results)


def floor(failed: list[str], name: str, value: float, most: float) -> None:
    """Print a floor, and note it where it is missed."""
    print(f"{'ok  ' if value <= most else 'FAIL'}  {name}: {value:.2f}, at most {most:.2f}")
    if value > most:
        failed.append(name)


def judge(runs: dict[str, Run], count: int) -> list[str]:
    """Print the table and the floors; return those that are missed."""
    failed: list[str] = []
    alone = runs["alone"]
    print(f"{'':<10} {'seconds':>8} {'ratio':>6} {'bucket':>7} {'right':>6}")
    want = alone.results[0]["revision"]
    for name, each in runs.items():
        right = sum(result.get("revision") == want for result in each.results)
        print(f"{name:<10} {each.seconds:>8.1f} {each.seconds / alone.seconds:>6.2f} {each.copies:>7.3f} {right:>6}")
    for name, copies, ratio in (("together", 1.05, 2.5), ("killed", 1.05, 3.5), ("bad", 1.25, 5.0)):
        if name not in runs:
            continue
        one = runs[name]
        floor(failed, f"{name}: copies that left the bucket", one.copies, copies)
        floor(failed, f"{name}: time / that of one node alone", one.seconds / alone.seconds, ratio)
        missing = count - (name == "killed") - sum(result.get("revision") == want for result in one.results)
        floor(failed, f"{name}: nodes without the right model", missing, 0)
        bad_peer = f"{address(0)}:{PORT}"
        expected = [bad_peer] if name == "bad" else []
        named = [result["named"] for result in one.results if result]
        floor(failed, f"{name}: nodes that ban a right node", sum(each not in ([], expected) for each in named), 0)
        if expected:
            floor(failed, f"{name}: nodes that name nobody", sum(each == [] for each in named), count / 2)
    return failed


def main() -> int:
    """Measure, print, and return 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--mbit", type=int, default=25, help="of each link, each way")
    parser.add_argument("--files", default=FILES, help="MiB of each file of the model")
    parser.add_argument("--folder", type=Path, help="on the disk to use")
    parser.add_argument("--runs", default="together,killed,bad")
    for name in ("--serve", "--top", "--pki"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bad", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
    if given.node is not None:
        be_node(given.node, given.top, given.pki, given.nodes, bad=given.bad)
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        print("not run: it needs root, ip and tc")
        return 1
    sizes = [int(float(each) * MIB) for each in given.files.split(",")]
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-peers-") as made:
        work = Path(made)
        (work / "buckets/models/m").mkdir(parents=True)
        for number, size in enumerate(sizes):
            content = random.Random(number).randbytes(size)  # noqa: S311 - who owns what follows from it
            (work / f"buckets/models/m/f{number:03}.bin").write_bytes(content)
        (work / "pki").mkdir()
        make_certificates(work / "pki")
        names = {number: f"tpb{os.getpid()}-{number}" for number in (*range(given.nodes), SERVER)}
        total = sum(sizes)
        print(f"{given.nodes} nodes, {len(sizes)} files, {total // MIB} MiB, links of {given.mbit} Mbit/s:", end=" ")
        print(f"{total * 8 / given.mbit / 1e6:.1f} s for one copy over one link")
        with network(names, given.mbit):
            runs = {"alone": run(names, work, 1, total)}
            cases: dict[str, dict[str, int]] = {"together": {}, "killed": {"killed": 1}, "bad": {"bad_peer": 0}}
            for name in given.runs.split(","):
                runs[name] = run(names, work, given.nodes, total, **cases[name])
        failed = judge(runs, given.nodes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
