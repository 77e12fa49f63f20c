"""Costs of rounds on this machine: measured, and stored for `c2t tune` and for budgets."""
