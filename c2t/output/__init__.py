"""What a terminal, a notebook and a figure show."""
