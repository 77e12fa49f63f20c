"""Parity of one-token decoding with a verified tree or chain: are a token's numbers the same in both?

Greedy text with trees equals plain decoding only if each node's logits are those that plain decoding computes, bit for
bit. Here both are run on the same nodes, and the modules whose results differ are named.
"""
