"""Model families: where a model comes from, how it runs, how it is saved."""
