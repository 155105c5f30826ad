"""Before a run (floor 5): settings and a measured machine in; partitions, buffer, bytes and times out."""
