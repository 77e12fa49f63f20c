"""Keys and values, and rows of different sizes packed into one."""
