"""The tree viewer: a page that shows, round by round, what the draft proposed, what the policy chose and what the
target accepted."""
