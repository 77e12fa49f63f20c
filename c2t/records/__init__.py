"""Harvested nodes on disk."""
