"""From texts to rows."""
