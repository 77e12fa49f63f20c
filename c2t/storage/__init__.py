"""Files and folders: their places, how a new one is put into its place, and checks of what is read."""
