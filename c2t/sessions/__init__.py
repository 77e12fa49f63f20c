"""Sessions around a draft's own: what a round knows besides the draft. `wrapped` is how to write one."""
