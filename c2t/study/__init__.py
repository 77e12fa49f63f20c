"""What policies cost and yield: measured, compared and chosen."""
