"""Adapters of real models to the two protocols, and the pairs of them by name."""
