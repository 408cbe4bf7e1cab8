"""The stages data, train and validate, and what plans and runs them."""
