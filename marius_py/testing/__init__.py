"""Tools for tests, the package's own and yours (floor 6).

In: a store, or any code that stores. Out: the same with faults at chosen calls.

- `FaultyStore(store, faults)` fails, tears, delays, fills the disk or breaks the device at the n-th call.
- `SlowStore(store, bytes_per_s)` moves bytes at a given speed, whatever the disk.
- `SystemCallFaults` does the same one floor lower, at the n-th system call that storage makes on a file.
- `store_tests.StoreTests` is a base class of tests that any `PartitionStore` must pass (needs pytest).
- `crashes.CrashServer` runs commands and kills them at any moment.
- `crash_harness.CrashHarness` does so at random, and compares what is left with a run that was never killed.

A run that must end with one clear error, and go on after the fault is lifted:

    clean = FaultyStore(make_store())
    train(clean)
    for number in range(1, len(clean.calls) + 1):
        with pytest.raises(StorageError):
            train(FaultyStore(make_store(), [Fault(number, "enospc")]))
"""

from __future__ import annotations

from marius_py.testing.stores import Fault, FaultKind, FaultyStore, SlowStore, WrappedStore
from marius_py.testing.system_calls import SystemCall, SystemCallFaults

__all__ = [
    "Fault",
    "FaultKind",
    "FaultyStore",
    "SlowStore",
    "SystemCall",
    "SystemCallFaults",
    "WrappedStore",
]
