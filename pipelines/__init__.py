"""Recipes around the library: building the embedded pair, the papers' tables and figures, studies, and measurements."""

from c2t.__main__ import sleep_soon

sleep_soon()  # as in the commands, before a module of this package imports torch
