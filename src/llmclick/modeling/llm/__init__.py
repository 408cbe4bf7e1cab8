"""Language models: loading, sampling, methods, training."""
