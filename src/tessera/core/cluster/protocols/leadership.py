"""Who of several processes leads, by a lease that all read and write: when it may be taken, how long it is believed.

              saw it unchanged for its duration, or free; wrote it
    follows ───────────────────────────────────────────────────────► leads
       ▲                                                               │
       └── no renewal answered for `renew_s`; saw another's; gave up ──┘

Every time is of one process's own monotonic clock; clocks are never compared, so that skew harms nothing:

- A lease counts as expired when this process has seen it unchanged for its duration, counted from the *answer* that
  showed it. Any change, whoever made it, begins the count anew.
- A leader believes in itself for `renew_s` from when it *sent* the last renewal that was answered.
- Writes name the version that they replace, so of two candidates that take an expired lease one is refused.

The answer that showed a renewal came after the renewal was sent, and the lease lasts longer than the belief: so two
never believe at once, while one process's clock runs less than `lease_s / renew_s` times as fast as another's (1.5 by
default), and nobody deletes the lease. The belief is a matter of time, not of a message that may come late; but what a
leader sent while it believed may arrive afterwards, so that its writes must name the version that they change. A clock
that stands still while its machine sleeps counts as a slow one.

Source: client-go `tools/leaderelection`, whose belief begins and ends the same.
"""

import msgspec

from tessera.errors import InvalidInput

__all__ = ["Candidate", "Lease", "Terms", "claim", "free_in_s", "granted", "leads", "observed", "pause_s", "released"]

_JITTER = 1.2
"""How many times its pause a candidate may wait beyond it, so that many do not ask at once. Source: client-go."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How long a lease is good for, and how often it is renewed; all candidates should have the same.

    Raises:
        InvalidInput: a leader could still believe when its lease is taken, or would have no second attempt.

    """

    lease_s: int = 15
    """A lease unchanged for so long may be taken."""
    renew_s: float = 10.0
    """A leader without an answered renewal for so long stops. The rest of the lease is its time to do so."""
    retry_s: float = 2.0
    """Between two attempts."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.retry_s <= self.renew_s < self.lease_s:
            raise InvalidInput(
                "terms of leadership",
                found=f"lease {self.lease_s} s, renewal {self.renew_s:g} s, retry {self.retry_s:g} s",
                hint="give twice the retry at most the renewal, and the renewal less than the lease",
            )


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease as it was read."""

    holder: str = ""
    """Empty when nobody holds it."""
    lease_s: int = 0
    """Its duration; 0 when it names none, and it lasts as long as one's own then."""
    transitions: int = 0
    """How often it went to another holder."""
    version: str = ""
    """Opaque; differs after every write. Empty when the lease does not exist yet."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A process that leads or would, and what it knows; every time by its own monotonic clock."""

    identity: str
    """No other process has it, not even a former one of the same pod."""
    terms: Terms = Terms()
    lease: Lease | None = None
    """As last seen; None before the first look."""
    changed_s: float = 0.0
    """When it was first seen so."""
    sent_s: float | None = None
    """When the last renewal that was answered was sent; None while it follows."""


def observed(candidate: Candidate, lease: Lease, answered_s: float) -> Candidate:
    """Return the candidate after it read the lease; another's lease ends its leadership."""
    changed_s = candidate.changed_s if candidate.lease == lease else answered_s
    sent_s = candidate.sent_s if lease.holder == candidate.identity else None
    return msgspec.structs.replace(candidate, lease=lease, changed_s=changed_s, sent_s=sent_s)


def free_in_s(candidate: Candidate, now_s: float) -> float:
    """Return in how many seconds the candidate may write the lease as last seen; 0 when it may now."""
    lease = candidate.lease
    if lease is None:
        return candidate.terms.retry_s
    if lease.holder in {"", candidate.identity}:
        return 0.0
    return max(0.0, candidate.changed_s + (lease.lease_s or candidate.terms.lease_s) - now_s)


def claim(candidate: Candidate, now_s: float) -> Lease | None:
    """Return the lease to write in place of the version it names, to lead or to go on; None while another's holds."""
    lease = candidate.lease
    if lease is None or free_in_s(candidate, now_s) > 0:
        return None
    taken = lease.holder != candidate.identity
    return Lease(
        holder=candidate.identity,
        lease_s=candidate.terms.lease_s,
        transitions=lease.transitions + (taken and bool(lease.version)),
        version=lease.version,
    )


def granted(candidate: Candidate, lease: Lease, sent_s: float, answered_s: float) -> Candidate:
    """Return the candidate after the server stored its lease."""
    return msgspec.structs.replace(observed(candidate, lease, answered_s), sent_s=sent_s)


def leads(candidate: Candidate, now_s: float) -> bool:
    """Return whether the candidate may believe that it leads."""
    return candidate.sent_s is not None and now_s < candidate.sent_s + candidate.terms.renew_s


def released(candidate: Candidate) -> tuple[Candidate, Lease | None]:
    """Return the candidate as a follower, and the lease to write so that others need not wait; None if it has none."""
    lease = candidate.lease
    own = lease is not None and lease.holder == candidate.identity
    free = msgspec.structs.replace(lease, holder="", lease_s=1) if lease is not None and own else None
    return msgspec.structs.replace(candidate, sent_s=None), free


def pause_s(candidate: Candidate, now_s: float, jitter: float) -> float:
    """Return the seconds until the next attempt.

    Args:
        candidate: who waits.
        now_s: now.
        jitter: a random number from 0 to 1, by which those who follow come at different times.

    """
    retry_s = candidate.terms.retry_s
    if leads(candidate, now_s):
        return retry_s
    wait_s = free_in_s(candidate, now_s)
    drawn_s = retry_s * (1 + _JITTER * jitter)
    return min(drawn_s, wait_s) if wait_s > 0 else drawn_s
