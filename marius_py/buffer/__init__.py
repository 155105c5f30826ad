"""Rows in memory (floor 2): a schedule's steps in; resident rows out, their changes back to the store.

The buffer lies in RAM or on a device; one thread swaps its partitions, and `Transfer` copies between host and
device beside what is computed.
"""

from marius_py.buffer.partitions import Lease, PartitionBuffer

__all__ = ["Lease", "PartitionBuffer"]
