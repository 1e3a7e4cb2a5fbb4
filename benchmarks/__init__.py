"""Benchmarks, the checks that stand before them, and the tool that calibrates the GEMM selector."""
