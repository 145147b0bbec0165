"""What config.json says about how the matrices of a quantized checkpoint are stored, without torch."""
