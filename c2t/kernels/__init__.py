"""Kernels in C for CPUs (csrc, which native.py loads) and in Triton for GPUs, each with a torch twin that runs
everywhere, and the data that they share."""
