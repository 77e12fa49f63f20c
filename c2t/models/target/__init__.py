"""Targets: stock causal language models of transformers, and packed forms of most families for CPUs."""
