"""Kernels in Triton, each with a torch twin that runs where there is no GPU, and the data that they share."""
