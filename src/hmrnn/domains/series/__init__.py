"""Series: multivariate numbers, step by step."""
