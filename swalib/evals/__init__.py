"""Measurements of a model under a spec. Each returns tidy rows; none draws."""
