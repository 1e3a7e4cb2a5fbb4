"""Mutations of the package's kernels, and whether the simulator finds them: `python -m benchmarks.mutations`."""
