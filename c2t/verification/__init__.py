"""The target's side of decoding: sampling, verification, and which target, policy and prompt fit together."""
