"""Recipes around the library: building the embedded pair, the papers' tables and figures, studies, and measurements."""
