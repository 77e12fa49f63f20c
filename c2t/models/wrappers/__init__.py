"""Wrappers around a draft: n-grams of the text, and corrections by the path."""
