"""The commands that ordinary flags configure (floor 6): each module adds its flags and runs."""
