"""How it produces: a KV cache for ragged rows, text decoding, the flow-matching sampler, the session."""
