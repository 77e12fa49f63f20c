"""From names and folders to targets, drafts and templates; what a file says is checked here."""
