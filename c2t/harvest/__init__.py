"""Harvest: rows for training, made from the target's texts."""
