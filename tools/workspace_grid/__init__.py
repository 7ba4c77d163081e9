"""The grid of operators that tools/measure_workspaces.py measures."""
