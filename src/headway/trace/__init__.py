"""Looking inside: what runs and models have done, as numbers and pictures."""
