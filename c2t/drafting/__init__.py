"""Training of draft heads for a target, from texts that the target itself generates."""
