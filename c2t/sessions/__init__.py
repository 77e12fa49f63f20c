"""Sessions that wrap a draft's session, to change its logits or its inputs. `wrapped` is the base class."""
