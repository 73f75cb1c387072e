"""Leader election among processes, by a Lease that all read and write: when it may be acquired, how long it is trusted.

              observed it unchanged for its duration, or free; wrote it
    follows ───────────────────────────────────────────────────────► leads
       ▲                                                               │
       └── no renewal answered for `renew_s`; observed another's; resigned ──┘

Every time is of one process's own monotonic clock; clocks are never compared, so skew is harmless:

- A lease counts as expired when this process has observed it unchanged for its duration, counted from the *answer* that
  showed it. Any change, by any process, restarts the count.
- A leader trusts its leadership for `renew_s` from when it *sent* the last renewal that was answered.
- Writes name the version that they replace, so of two candidates that take an expired lease one is refused.

The answer that showed a renewal came after the renewal was sent, and the lease lasts longer than the trust: so two
never lead at the same time, while one process's clock runs less than `lease_s / renew_s` times as fast as another's
(1.5 by default), and the lease is not deleted. Trust is a matter of time, not of a message that may come late; but
writes that a leader sent while it trusted its leadership may arrive afterwards, so they must name the version that
they change. A clock that stops while its machine sleeps counts as a slow one.

Source: client-go `tools/leaderelection`, whose trust begins and ends the same.
"""

import msgspec

from tessera.errors import InvalidInput

__all__ = ["Candidate", "Lease", "Terms", "acquired", "claim", "free_in_s", "leads", "observed", "pause_s", "released"]

_JITTER = 1.2
"""Jitter: a candidate waits up to this many times its pause in addition. Source: client-go."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How long a lease lasts, and how often it is renewed; all candidates should have the same.

    Raises:
        InvalidInput: a leader could still trust itself when its lease is acquired, or would have no second attempt.

    """

    lease_s: int = 15
    """A lease unchanged for this long may be acquired."""
    renew_s: float = 10.0
    """A leader without an answered renewal for this long stops. The rest of the lease is its time to do so."""
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
    """The lease that was read."""

    holder: str = ""
    """Empty when no server has it."""
    lease_s: int = 0
    """Its duration; 0 where it has none, and one's own counts."""
    transitions: int = 0
    """How often it changed its holder."""
    version: str = ""
    """Opaque; differs after every write. Empty when the lease does not exist yet."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A process that leads or wants to, and its knowledge; every time by its own monotonic clock."""

    identity: str
    """Unique, even among former processes of the same pod."""
    terms: Terms = Terms()
    lease: Lease | None = None
    """As last observed; None before the first read."""
    changed_s: float = 0.0
    """When it was first observed so."""
    sent_s: float | None = None
    """When the last answered renewal was sent; None for a follower."""


def observed(candidate: Candidate, lease: Lease, answered_s: float) -> Candidate:
    """Return the candidate after it read the lease; another's lease ends its leadership."""
    changed_s = candidate.changed_s if candidate.lease == lease else answered_s
    sent_s = candidate.sent_s if lease.holder == candidate.identity else None
    return msgspec.structs.replace(candidate, lease=lease, changed_s=changed_s, sent_s=sent_s)


def free_in_s(candidate: Candidate, now_s: float) -> float:
    """Return in how many seconds the candidate may write the last observed lease; 0 for now."""
    lease = candidate.lease
    if lease is None:
        return candidate.terms.retry_s
    if lease.holder in {"", candidate.identity}:
        return 0.0
    return max(0.0, candidate.changed_s + (lease.lease_s or candidate.terms.lease_s) - now_s)


def claim(candidate: Candidate, now_s: float) -> Lease | None:
    """Return the lease to write in place of the version it names, to acquire or renew; None while another's holds."""
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


def acquired(candidate: Candidate, lease: Lease, sent_s: float, answered_s: float) -> Candidate:
    """Return the candidate after the server stored its lease."""
    return msgspec.structs.replace(observed(candidate, lease, answered_s), sent_s=sent_s)


def leads(candidate: Candidate, now_s: float) -> bool:
    """Return whether the candidate may trust its leadership."""
    return candidate.sent_s is not None and now_s < candidate.sent_s + candidate.terms.renew_s


def released(candidate: Candidate) -> tuple[Candidate, Lease | None]:
    """Return the candidate as a follower, and the lease to write to release it; None if it has none."""
    lease = candidate.lease
    own = lease is not None and lease.holder == candidate.identity
    free = msgspec.structs.replace(lease, holder="", lease_s=1) if lease is not None and own else None
    return msgspec.structs.replace(candidate, sent_s=None), free


def pause_s(candidate: Candidate, now_s: float, jitter: float) -> float:
    """Return the seconds until the next attempt.

    Args:
        candidate: the one that waits.
        now_s: now.
        jitter: a random number from 0 to 1, which spreads the followers' attempts.

    """
    retry_s = candidate.terms.retry_s
    if leads(candidate, now_s):
        return retry_s
    wait_s = free_in_s(candidate, now_s)
    drawn_s = retry_s * (1 + _JITTER * jitter)
    return min(drawn_s, wait_s) if wait_s > 0 else drawn_s
