"""From a step's buckets to batches of ids (floor 2)."""
