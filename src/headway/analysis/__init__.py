"""Look inside models and runs: attention maps, input gradients, sampler steps, training curves."""
