"""n-gram models: counting, smoothing, look-up, and the ARPA and count file formats."""
