"""The files of a run (floor 4): its folder in; rows and settings out. Written: result.json, metrics.jsonl."""
