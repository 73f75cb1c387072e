"""How long a node computes the owners of the chunks of a large data set, and how long its event loop pauses meanwhile.

`python bench/owners.py [--contents N] [--members N,N...]`

A data set of a million files has a million contents. Owners are computed when a fetch begins, and again when the list
of nodes changes, in a thread that shares the interpreter with the loop that answers the kubelet. Here the loop only
notes the time.

Floors, as ratios of processor time to the reference: the SHA-256 of each content's key, one after the other. At the
beginning at most 20 references; for other members at most 5; and the loop pauses for at most 500 ms. Of three rounds
the best counts.
"""

import argparse
import asyncio
import hashlib
import ssl
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.clients.store.peers import PeerConnections
from tessera.core.storage.models.peers.owners import PeerPatience
from tessera.core.storage.models.revisions import StoredObject

ROUNDS = 3
SIZE = 128 * 1024
MOST_BEGINNING, MOST_OTHERS, MOST_PAUSE_S = 20.0, 5.0, 0.5


async def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Return the processor time of work in a thread, and the longest pause of the event loop meanwhile."""
    spent, done = 0.0, threading.Event()

    def run() -> None:
        nonlocal spent
        begun = time.thread_time()
        work()
        spent = time.thread_time() - begun
        done.set()

    thread, longest, last = threading.Thread(target=run), 0.0, time.monotonic()
    thread.start()
    while not done.is_set():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    thread.join()
    return spent, longest


def main() -> int:
    """Measure, print, and return 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--contents", type=int, default=1_000_000)
    parser.add_argument("--members", default="16,64,256")
    given = parser.parse_args()
    objects = [StoredObject(f"{number}.jpg", SIZE, checksum=f"md5:{number:032x}") for number in range(given.contents)]
    begun = time.thread_time()
    for each in objects:
        hashlib.sha256(each.checksum.encode()).hexdigest()
    reference, failed = time.thread_time() - begun, False
    print(f"{given.contents} contents; the reference takes {reference:.2f} s\n")
    print(f"{'members':>7} {'beginning s':>11} {'ratio':>6} {'others s':>8} {'ratio':>6} {'pause ms':>8}")
    for count in map(int, given.members.split(",")):
        members = [f"10.0.{number >> 8}.{number & 255}:9443" for number in range(count)]
        chunks = PeerChunks(members[0], PeerConnections(ssl.create_default_context(), PeerPatience()))
        chunks.set_peers(members[:-1])
        beginnings, others = [], []
        for turn in range(ROUNDS):
            peers = members if turn % 2 == 0 else members[:-1]
            beginnings.append(asyncio.run(measured(partial(chunks.begin, objects))))
            others.append(asyncio.run(measured(partial(chunks.set_peers, peers))))
        first, other = min(each for each, _ in beginnings), min(each for each, _ in others)
        pause = max(min(each for _, each in beginnings), min(each for _, each in others))
        row = f"{count:>7} {first:>11.2f} {first / reference:>6.1f} {other:>8.2f} {other / reference:>6.1f}"
        print(f"{row} {pause * 1000:>8.0f}")
        failed |= first > MOST_BEGINNING * reference or other > MOST_OTHERS * reference or pause > MOST_PAUSE_S
    print("\nFAIL" if failed else "\nok")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
