"""Copies of weights in other forms, and when they are made again."""
