"""Going on (floor 5): a run folder in; the same one claimed, copies of it, or a larger graph's out."""
