"""Pallas TPU kernels, one per file: the body and its launcher."""
