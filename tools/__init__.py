"""What makes and measures the project: set-up, pins, wheel, pictures."""
