"""Drafts: heads, language models and a uniform draft, each a file that registers itself."""
