"""Tables, progress, figures and trees, as a terminal, a notebook and a page show them."""
