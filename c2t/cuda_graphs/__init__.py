"""Draft phase and verification of fixed shapes, as CUDA graphs. Experimental: one H100 has run it (docs/gpu.md)."""
