"""Output for people: text, tables, progress bars, figures, trees, and messages after signals."""
