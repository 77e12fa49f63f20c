"""Recipes that keep README and docs true: tables rendered from result lines, and the picture of one tree."""
