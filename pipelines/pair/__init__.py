"""Recipe of the embedded pair and its relatives."""
