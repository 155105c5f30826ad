"""What the files and folders of a run are called (floor 4)."""

import re

CHECKPOINT_FOLDER = "checkpoint"
CONFIG_FILE = "config.yaml"
"""The resolved settings."""
METRICS_FILE = "metrics.jsonl"
CSV_FILE = "metrics.csv"
RESULT_FILE = "result.json"
TRACE_FILE = "trace.json"
CONFIG_META, RESULT_META = "config", "result"
"""What a commit's meta calls their content."""
RESULT_BEFORE_META = "result_before"
"""Results that result.json may still hold where a run that was tested again ended before it was written."""
SNAPSHOT_FOLDER = "snapshots"
SNAPSHOT_NAME = re.compile(r"(epoch|best)-\d+")
SORTED_EDGES_NAME = re.compile(r"edges-\d+")
"""Folders of a run's own in which it keeps the graph's edges for another number of partitions."""
DEMO_GRAPH = "graph"
