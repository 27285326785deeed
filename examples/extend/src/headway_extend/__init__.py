"""A family, an attention function, a sampler, a dataset and a metric for Headway, one file each."""
