"""What a decoder is: `config.json` and a family into a `ModelSpec`. No torch."""
