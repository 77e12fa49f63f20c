"""Draft phase and verification of fixed shapes, as CUDA graphs. Experimental: no GPU has run it in this form
(docs/gpu.md)."""
