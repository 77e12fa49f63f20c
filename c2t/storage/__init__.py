"""Where things are, and how a new one is put into its place."""
