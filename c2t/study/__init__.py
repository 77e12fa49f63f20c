"""Measurement, comparison and choice of policies by cost and yield."""
