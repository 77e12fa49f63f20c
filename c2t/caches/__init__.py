"""Key-value caches, and packed batches of rows of different sizes."""
