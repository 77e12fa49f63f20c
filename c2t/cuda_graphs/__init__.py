"""Draft phase and verification of fixed shapes, as CUDA graphs."""
