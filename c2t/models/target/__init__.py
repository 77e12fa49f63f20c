"""Targets: stock causal language models of transformers, and Llamas packed for CPUs."""
