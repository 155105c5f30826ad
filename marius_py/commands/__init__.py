"""The commands (floor 6): words in; their work done, and what they say out.

A module of a command's name adds ordinary flags and runs; the others are what commands share: messages and
exit codes, settings by hydra, progress, signals.
"""
