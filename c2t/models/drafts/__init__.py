"""Drafts: heads, which heads.py registers, language models and a uniform draft."""
