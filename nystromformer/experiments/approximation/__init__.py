"""Studies of the approximation in a trained model."""
