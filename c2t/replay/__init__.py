"""Exact replay: the same rounds without running the target."""
