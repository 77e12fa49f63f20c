"""Constraints on the text: which tokens may follow, by a JSON schema, a regular expression, a grammar or tool calls.

A constraint masks the target's choices, so every text follows it. It also masks the draft's distributions before a
policy ranks them. Then no ranked tree has a forbidden token, and a token that must follow has probability 1.
"""
