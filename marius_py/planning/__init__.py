"""Before a run (floor 5): sizes and a measured machine in; partitions, buffer, bytes and times out."""
