"""What a token costs: bytes, FLOPs and state on paper, seconds on a machine."""
