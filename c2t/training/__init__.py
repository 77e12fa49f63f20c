"""From rows to a classifier."""
