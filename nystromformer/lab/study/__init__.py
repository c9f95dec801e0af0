"""What the approximation does in a trained model."""
