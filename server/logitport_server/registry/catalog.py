"""The registry's content: what the store holds, as this server has read it, and changes of it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitport.errors import LogitportError, PayloadError
from logitport_server.registry.change import Change, Held
from logitport_server.registry.stored_records import Binding, Quarantined, Registration, decode
from logitport_server.registry.stores.base import Conflict, StoreError
from logitport_server.registry.view import Entry, View
from logitport_session.resources import descriptors
from logitport_session.resources.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from logitport.payload import Payload
    from logitport_server.registry.change import Item
    from logitport_server.registry.quarantine import Quarantine
    from logitport_server.registry.stores.base import Store
    from logitport_server.registry.stores.seal import Seal
    from logitport_session.trust.principals import TrustDomain

logger = logging.getLogger(__name__)

# Bounds repetitions while other servers change the same keys. Each repetition means that another server made a change.
_MAX_ATTEMPTS = 50
# Values are read in batches, so that not all serialized payloads are in memory at the same time.
_BATCH = 16
# Payloads are parsed while they are read.
_READ_SECONDS = 1.0


class Catalog:
    """Reads the store and changes it. Thread-safe. Its view changes only as a whole, and is read without a lock.

    A change expects the revisions that its decision is based on. If another server has changed one of them, this
    server reads the store again, and decides again.

    Args:
        store: the store.
        seal: seals and checks its values.
        accept: checks a payload of the store. Raises LogitportError. It neither reads a pickle nor verifies a program:
            a server has done so before it stored the payload, and the process that uses it does so again.
        quarantine: follows the quarantines in the store.
        on_removed: called with the display name of a processor after its last registration is gone.

    Attributes:
        outage: why the store could not be used at the last poll, or could not be read since; "" if it could.

    Raises:
        LogitportError: the store cannot be read.
    """

    def __init__(
        self,
        store: Store,
        seal: Seal,
        accept: Callable[[str], Payload],
        quarantine: Quarantine,
        on_removed: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.view = View()
        self._store = store
        self._seal = seal
        self._accept = accept
        self._quarantine = quarantine
        self._on_removed = on_removed
        # Held while the store is read or written. Steps, and look-ups for requests, use the view and never wait for it.
        self._changing = threading.Lock()
        self._version: str | None = None
        self._held: dict[str, Held] = {}
        self.outage = ""
        self._log_limit = LogLimit()
        with self._using_store():
            self._synchronize(math.inf)

    @property
    def registry_id(self) -> str:
        """Random name of the store."""
        return self._store.id

    def refresh(self) -> View:
        """Read all that other servers have changed. Returns the view. Raises LogitportError if that fails."""
        with self._using_store():
            try:
                self._synchronize(math.inf)
            except StoreError as error:  # calls that wait for this one fail without an attempt of their own
                self.outage = self.outage or str(error)
                raise
            return self.view

    def change(self, plan: Callable[[View, Change], None]) -> View:
        """Make a change that depends on the present content. Returns the view after it.

        Args:
            plan: fills the change. It may raise, and is called again if another server has changed the store meanwhile.

        Raises:
            LogitportError: the store cannot be read or written.
        """
        with self._using_store():
            return self._change(plan)

    def lift(self, digest: str) -> bool:
        """Lift the quarantine of a processor on all servers. Returns whether it was quarantined.

        Raises:
            LogitportError: the store cannot be read or written.
        """

        def plan(_: View, change: Change) -> None:
            change.deleted.update(key for key, quarantined in self._quarantines() if quarantined.digest == digest)

        with self._using_store():
            self._change(plan)
            return self._quarantine.lift(digest)

    def poll(self) -> None:
        """Read what other servers have changed, and store new quarantines. Logs when the store is lost and is back."""
        try:
            with self._changing:
                self._synchronize()
                self._store_quarantines()
        except StoreError as error:
            if not self.outage:
                logger.error(
                    "the store cannot be used: %s; what is registered stays in use, and changes are refused meanwhile",
                    error,
                )
            self.outage = str(error)
            # Those that are not in the store and have ended since are dropped: their number would have no limit.
            changes = self._quarantine.take_changes()
            self._quarantine.put_back(change for change in changes if self._is_stored(*change))
        else:
            if self.outage:
                logger.info("the store can be used again")
            self.outage = ""

    @contextmanager
    def _using_store(self) -> Iterator[None]:
        """Context for one use of the store, with the errors for a client.

        If the last poll failed, it fails at once: each attempt may wait for a timeout.
        """
        self._check_outage()
        try:
            with self._changing:
                self._check_outage()  # it may have begun meanwhile
                yield
        except StoreError as error:
            if descriptors.is_shortage(error):
                raise descriptors.shortage() from error
            if self._log_limit.take("") is not None:
                logger.error("a call of the registry has failed: the store cannot be used: %s", error)
            happened = "the change may have happened, repeat it" if error.uncertain else "nothing has changed"
            raise LogitportError(f"the server's store cannot be used: {error}; {happened}") from error

    def _check_outage(self) -> None:
        if self.outage:
            raise LogitportError(
                f"the server's store cannot be used: {self.outage}; nothing has changed, try again later"
            )

    def _change(self, plan: Callable[[View, Change], None]) -> View:
        for _ in range(_MAX_ATTEMPTS):
            self._synchronize()
            change = Change()
            plan(self.view, change)
            writes = change.writes(self._held, self._seal)
            if not writes:
                return self.view
            try:
                revision = self._store.commit(writes)
            except Conflict:
                self._version = None
                continue
            for write in writes:
                if write.key in change.saved:
                    self._held[write.key] = Held(revision, change.saved[write.key][1])
                else:
                    del self._held[write.key]
            self._show()
            return self.view
        raise StoreError("other servers change the same entries at the same time")

    def _synchronize(self, limit_seconds: float | None = None) -> None:
        """Read what has changed since the last time. If that takes long, the rest is left to the next call.

        The values have the revisions of one index, so they are from one moment. Only what takes longer than the limit
        comes in parts: a flood of registrations must not delay deletions.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._version is not None and self._store.version() == self._version:
            return
        deadline = time.monotonic() + (_READ_SECONDS if limit_seconds is None else limit_seconds)
        known = dict(self._held)
        fetched: list[Held] = []
        for _ in range(_MAX_ATTEMPTS):
            version, revisions = self._store.index()
            missing = [
                key for key, revision in revisions.items() if key not in known or known[key].revision != revision
            ]
            for key, held in self._read(by_urgency(missing, known), deadline):
                known[key] = held
                fetched.append(held)
            if all(key in known and known[key].revision == revisions[key] for key in missing):
                self._version = version
                break
            if time.monotonic() > deadline:
                break
        before = dict(self._quarantines())
        self._held = {key: held for key, held in known.items() if key in revisions}
        self._show()
        self._follow_quarantines(before)
        for held in fetched:
            self._warn_if_reserved(held.item)

    def _show(self) -> None:
        items = [held.item for held in self._held.values()]
        before = self.view
        self.view = View(
            (item for item in items if isinstance(item, Entry)), (item for item in items if isinstance(item, Binding))
        )
        for display_name in before.display_names - self.view.display_names:
            self._on_removed(display_name)

    def _read(self, keys: Sequence[str], deadline: float) -> Iterator[tuple[str, Held]]:
        for start in range(0, len(keys), _BATCH):
            if start and time.monotonic() > deadline:
                break
            for key, (revision, value) in self._store.read(keys[start : start + _BATCH]).items():
                yield key, Held(revision, self._open(key, value))

    def _open(self, key: str, value: bytes | None) -> Item | None:
        """Check a value of the store. One that is refused is logged, and stays stored."""
        try:
            if value is None:
                raise ValueError(f"it has more than {self._store.max_value_bytes} bytes")
            record = decode(key, self._seal.remove(key, value))
        except ValueError as error:
            logger.error("the stored entry %.200r is ignored: %s", key, error)
            return None
        if not isinstance(record, Registration):
            assert isinstance(record, (Binding, Quarantined))  # noqa: S101 - there are three kinds
            return record
        try:
            shipped = self._accept(record.serialized)
            if shipped.digest != record.digest:
                raise PayloadError(f"its digest is {shipped.digest}")
        except LogitportError as error:
            logger.warning("the stored processor %s was not loaded: %s", record.digest, error)
            return None
        return Entry(shipped, record.owner, record.registered_at, record.shared)

    def _warn_if_reserved(self, item: Item | None) -> None:
        if isinstance(item, Binding) and self.view.named(item.name) is None:
            logger.warning(
                "the stored name %s was not loaded, because its processor %s could not be loaded",
                item.name,
                item.digest,
            )

    def _quarantines(self) -> Iterator[tuple[str, Quarantined]]:
        for key, held in self._held.items():
            if isinstance(held.item, Quarantined):
                yield key, held.item

    def _follow_quarantines(self, before: dict[str, Quarantined]) -> None:
        """Quarantine what other servers have quarantined, and lift what they have lifted."""
        now = dict(self._quarantines())
        for key in before.keys() - now.keys():
            self._quarantine.forget(before[key].trust_domain, before[key].digest)
        for key in now.keys() - before.keys():
            self._quarantine.adopt(now[key].trust_domain, now[key].digest, now[key].reason)

    def _store_quarantines(self) -> None:
        changes = self._quarantine.take_changes()
        if not changes:
            return

        def plan(_: View, change: Change) -> None:
            for domain, digest in changes:
                record = Quarantined.of(domain, digest, self._quarantine.reason_in(domain, digest))
                if record.reason and record.key not in self._held:
                    change.quarantine(record)
                elif not record.reason:
                    change.deleted.add(record.key)

        try:
            self._change(plan)
        except StoreError:
            self._quarantine.put_back(changes)
            raise

    def _is_stored(self, domain: TrustDomain | None, digest: str) -> bool:
        """Whether the store has this quarantine, or should have it."""
        reason = self._quarantine.reason_in(domain, digest)
        return bool(reason) or Quarantined.of(domain, digest, reason).key in self._held


def by_urgency(keys: Sequence[str], known: Container[str]) -> list[str]:
    """Sort keys: names and quarantines, which are small, then changed registrations, then one new one of each owner."""
    of_owner: Counter[str] = Counter()

    def rank(key: str) -> tuple[bool, int]:
        if not key.startswith(f"{Registration.kind}/") or key in known:
            return key.startswith(f"{Registration.kind}/"), 0
        owner = key.split("/", 2)[-1]
        of_owner[owner] += 1
        return True, of_owner[owner]

    return sorted(keys, key=rank)
