"""Stages, bounded queues, inline and threaded runners (floor 3)."""
