"""Draft phase and verification of fixed shapes, as CUDA graphs. Experimental: has not run on a device."""
