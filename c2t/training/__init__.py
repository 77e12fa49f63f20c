"""Training of classifiers on harvested rows."""
