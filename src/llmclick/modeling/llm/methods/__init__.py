"""The methods: what is maximised for a sampled group."""
